//! The options of a merge, reset, revert or cherry-pick: rules, keyspaces and metadata.

use crate::engine::Engine;
use crate::merge::keys::Scope;
use crate::merge::rule::MergeRule;
use crate::types::error::Result;
use crate::types::keyspaces::Keyspace;

/// The options of one operation. By default, it includes all keyspaces and has no rules.
#[derive(Clone, Default)]
pub(crate) struct Choices {
    /// If a keyspace has several rules, the last one applies.
    pub(crate) rules: Vec<(Keyspace, MergeRule)>,
    /// The included keyspaces; `None`: all.
    pub(crate) keyspaces: Option<Vec<Keyspace>>,
    /// The excluded keyspaces, even if `keyspaces` includes them.
    pub(crate) excluded: Vec<Keyspace>,
    /// The metadata of the new commit; `None`: the default of the operation.
    pub(crate) metadata: Option<Vec<u8>>,
}

impl Choices {
    /// Checks that the included and excluded keyspaces exist in the store.
    ///
    /// # Errors
    /// A keyspace belongs to another store, or was dropped.
    pub(crate) fn check_keyspaces(&self, store: &Engine) -> Result<()> {
        for keyspace in self.keyspaces.iter().flatten().chain(&self.excluded) {
            store.reader.keyspaces.id_of(keyspace)?;
        }
        Ok(())
    }

    /// The scopes whose keyspaces are included and not excluded.
    pub(crate) fn choose(&self, mut scopes: Vec<Scope>) -> Vec<Scope> {
        scopes.retain(|scope| {
            let is_in =
                |all: &[Keyspace]| all.iter().any(|keyspace| *keyspace.name() == *scope.name);
            self.keyspaces.as_deref().is_none_or(is_in) && !is_in(&self.excluded)
        });
        scopes
    }

    /// The included keyspaces without the excluded ones, whole; `None`: all.
    pub(crate) fn scopes(&self, store: &Engine) -> Option<Vec<Scope>> {
        let named = self.keyspaces.as_deref().map(Scope::whole_of);
        let is_all = named.is_none() && self.excluded.is_empty();
        (!is_all).then(|| self.choose(named.unwrap_or_else(|| Scope::all(store))))
    }

    /// The metadata of the new commit; `default` if none was set.
    pub(crate) fn metadata_or(&self, default: impl Into<Vec<u8>>) -> Vec<u8> {
        self.metadata.clone().unwrap_or_else(|| default.into())
    }
}

/// Implements the named builder methods of a type that has a field `choices`.
macro_rules! choose {
    ($merge:ty: $($method:ident)+) => {
        impl $merge {
            $($crate::merge::choices::choose!(@$method);)+
        }
    };
    (@rule) => {
        /// Sets the rule that resolves conflicts in a keyspace. If a keyspace has several rules,
        /// the last one applies.
        pub fn rule(
            mut self,
            keyspace: &$crate::Keyspace,
            rule: $crate::merge::rule::MergeRule,
        ) -> Self {
            self.choices.rules.push((keyspace.clone(), rule));
            self
        }
    };
    (@keyspace) => {
        /// Changes only this keyspace. Call it several times to include several keyspaces.
        pub fn keyspace(mut self, keyspace: &$crate::Keyspace) -> Self {
            self.choices.keyspaces.get_or_insert_default().push(keyspace.clone());
            self
        }
    };
    (@except) => {
        /// Excludes this keyspace. Call it several times to exclude several keyspaces.
        pub fn except(mut self, keyspace: &$crate::Keyspace) -> Self {
            self.choices.excluded.push(keyspace.clone());
            self
        }
    };
    (@metadata) => {
        /// Replaces the default metadata of the new commit; at most 64 KiB.
        pub fn metadata(mut self, metadata: impl Into<Vec<u8>>) -> Self {
            self.choices.metadata = Some(metadata.into());
            self
        }
    };
}
pub(crate) use choose;
