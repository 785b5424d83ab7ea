//! The archive as its newest manifest describes it. Restores and verifications read it.
//!
//! Meanwhile an active archiver may delete objects that the view names and newer manifests do not.
//! Such an object is not damaged.

use crate::bucket::Bucket;
use crate::catalog::Catalog;
use crate::error::{Damage, MISSING, Result};
use crate::manifest::{self, Found, Manifest};
use crate::push::unusable;

pub(crate) struct View {
    newest: Found,
    pub(crate) catalog: Catalog,
    /// Unusable manifests, followed by unusable lists.
    pub(crate) damage: Vec<Damage>,
    /// Whether there are newer manifests, all of them unusable.
    pub(crate) has_newer: bool,
    /// Whether lists are unusable, so that entries are missing from the catalog.
    pub(crate) lacks_lists: bool,
}

impl View {
    pub(crate) fn load(bucket: &dyn Bucket, place: &str) -> Result<Self> {
        let mut damage = Vec::new();
        let last = manifest::numbers(bucket)?.last().copied();
        let newest = manifest::newest(bucket, manifest::read_if_possible, &mut damage)?;
        let Some(newest) = newest else { return Err(unusable(place, damage)) };
        let has_newer = last > Some(newest.manifest.number);
        let of_manifests = damage.len();
        let catalog = Catalog::read(bucket, &newest.manifest, &mut damage)?;
        let lacks_lists = damage.len() > of_manifests;
        let view = Self { newest, catalog, damage, has_newer, lacks_lists };
        let mut lists = view.damage[of_manifests..].iter();
        match lists.find(|list| list.what == MISSING) {
            Some(list) => {
                let newer = view.without(bucket, place, &list.object)?;
                Ok(newer.unwrap_or(view))
            }
            None => Ok(view),
        }
    }

    /// The newer view of an archive that no longer needs `object`, which is missing. `None` if the
    /// object is needed, and therefore lost.
    pub(crate) fn without(
        &self,
        bucket: &dyn Bucket,
        place: &str,
        object: &str,
    ) -> Result<Option<Self>> {
        Ok(self.newer(bucket, place)?.filter(|newer| !newer.names(object)))
    }

    /// The current view, if the archive has a newer manifest.
    pub(crate) fn newer(&self, bucket: &dyn Bucket, place: &str) -> Result<Option<Self>> {
        if manifest::numbers(bucket)?.last() <= Some(&self.manifest().number) {
            return Ok(None);
        }
        let newer = Self::load(bucket, place)?;
        Ok((newer.manifest().number > self.manifest().number).then_some(newer))
    }

    /// Whether the catalog needs an object, apart from the files of its bases.
    pub(crate) fn names(&self, object: &str) -> bool {
        let lists = self.manifest().lists.iter();
        lists.chain(self.catalog.objects()).any(|named| named.name == object)
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.newest.manifest
    }
}
