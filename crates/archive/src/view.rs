//! An archive as its newest manifest names it, which is what a restore and a verification read.
//!
//! An archiver may go on meanwhile, and delete objects that the view names and its newer manifests
//! do not: such an object is not damaged.

use crate::bucket::Bucket;
use crate::catalog::Catalog;
use crate::error::{Damage, Result};
use crate::manifest::{self, Found, Manifest};
use crate::push::unusable;

pub(crate) struct View {
    newest: Found,
    pub(crate) catalog: Catalog,
    /// Manifests that cannot be used, then lists.
    pub(crate) damage: Vec<Damage>,
    /// Whether there are newer manifests, none of which can be used.
    pub(crate) has_newer: bool,
    /// Whether lists cannot be used: entries are missing in the catalog.
    pub(crate) lacks_lists: bool,
}

impl View {
    pub(crate) fn load(bucket: &dyn Bucket, place: &str) -> Result<Self> {
        let mut damage = Vec::new();
        let last = manifest::numbers(bucket)?.last().copied();
        let newest = manifest::newest(bucket, &mut damage)?;
        let Some(newest) = newest else { return Err(unusable(place, damage)) };
        let has_newer = last > Some(newest.manifest.number);
        let of_manifests = damage.len();
        let catalog = manifest::catalog(bucket, &newest.manifest, &mut damage)?;
        let lacks_lists = damage.len() > of_manifests;
        Ok(Self { newest, catalog, damage, has_newer, lacks_lists })
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.newest.manifest
    }
}
