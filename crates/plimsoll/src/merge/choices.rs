//! The choices for a merge that has not run yet: rules, keyspaces, metadata.

use crate::engine::Engine;
use crate::merge::keys::Scope;
use crate::merge::rule::MergeRule;
use crate::types::error::Result;
use crate::types::keyspaces::Keyspace;

/// What was chosen; the default: all keyspaces, without rules.
#[derive(Clone, Default)]
pub(crate) struct Choices {
    pub(crate) rules: Vec<(Keyspace, MergeRule)>,
    /// `None`: all.
    pub(crate) keyspaces: Option<Vec<Keyspace>>,
    pub(crate) excluded: Vec<Keyspace>,
    pub(crate) metadata: Option<Vec<u8>>,
}

impl Choices {
    /// # Errors
    /// A keyspace is of another store, or was dropped.
    pub(crate) fn check_keyspaces(&self, store: &Engine) -> Result<()> {
        for keyspace in self.keyspaces.iter().flatten().chain(&self.excluded) {
            store.reader.keyspaces.id_of(keyspace)?;
        }
        Ok(())
    }

    /// Those of `scopes` that are chosen.
    pub(crate) fn choose(&self, mut scopes: Vec<Scope>) -> Vec<Scope> {
        scopes.retain(|scope| {
            let is_in =
                |all: &[Keyspace]| all.iter().any(|keyspace| *keyspace.name() == *scope.name);
            self.keyspaces.as_deref().is_none_or(is_in) && !is_in(&self.excluded)
        });
        scopes
    }

    /// The chosen keyspaces, whole; `None`: all.
    pub(crate) fn scopes(&self, store: &Engine) -> Option<Vec<Scope>> {
        let named = self.keyspaces.as_deref().map(Scope::whole_of);
        let is_all = named.is_none() && self.excluded.is_empty();
        (!is_all).then(|| self.choose(named.unwrap_or_else(|| Scope::all(store))))
    }

    /// The metadata of the commit; `default` if none was chosen.
    pub(crate) fn metadata_or(&self, default: impl Into<Vec<u8>>) -> Vec<u8> {
        self.metadata.clone().unwrap_or_else(|| default.into())
    }
}

/// Implements the named methods of a type with the field `choices`.
macro_rules! choose {
    ($merge:ty: $($method:ident)+) => {
        impl $merge {
            $($crate::merge::choices::choose!(@$method);)+
        }
    };
    (@rule) => {
        /// Sets what becomes of the keys of a keyspace that are a conflict otherwise.
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
        /// Changes only this keyspace; may be called for several.
        pub fn keyspace(mut self, keyspace: &$crate::Keyspace) -> Self {
            self.choices.keyspaces.get_or_insert_default().push(keyspace.clone());
            self
        }
    };
    (@except) => {
        /// Leaves this keyspace as it is; may be called for several.
        pub fn except(mut self, keyspace: &$crate::Keyspace) -> Self {
            self.choices.excluded.push(keyspace.clone());
            self
        }
    };
    (@metadata) => {
        /// Sets other metadata of the new commit, up to 64 KiB.
        pub fn metadata(mut self, metadata: impl Into<Vec<u8>>) -> Self {
            self.choices.metadata = Some(metadata.into());
            self
        }
    };
}
pub(crate) use choose;
