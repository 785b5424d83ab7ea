//! Tags: named moments that stay readable.

use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::tag_commits;
use crate::types::error::Result;
use crate::types::tags::TagInfo;

impl Db {
    /// Names a moment, which stays readable in every keyspace until the tag is deleted, whatever
    /// the keyspace's retention. A store has at most 1,000 tags. Up to 32 tags, forks and open
    /// snapshots retain only the versions that they see; if there are more, all versions from the
    /// 33rd oldest moment on are retained, and so is the log.
    ///
    /// For a past moment that a keyspace's retention does not cover, a flush or merge that has
    /// begun may still drop versions, as for [`Db::snapshot_at`]; the newest moment has no such
    /// limit.
    ///
    /// The name has 1 to 255 bytes and no control characters. It must not be `newest`, `now`,
    /// `yesterday` or a number, begin like a date, count back from now (`2 hours ago`), contain
    /// `:`, or begin or end with a space: commands would take it for another kind of moment.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let prices = db.create_keyspace("prices", Retention::Latest)?;
    /// db.put(&prices, "tea", "3.00")?;
    /// db.tag("before-sale", Moment::Newest)?;
    /// db.put(&prices, "tea", "2.50")?;
    /// let before = db.snapshot_at(db.tag_at("before-sale")?.into())?;
    /// assert_eq!(before.get(&prices, "tea")?.unwrap(), b"3.00");
    /// db.delete_tag("before-sale")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidInput::TagName`](crate::InvalidInput::TagName),
    /// [`InvalidInput::TagExists`](crate::InvalidInput::TagExists),
    /// [`InvalidInput::TooManyTags`](crate::InvalidInput::TooManyTags);
    /// [`Error::Trimmed`](crate::Error::Trimmed) if a keyspace that existed at the moment cannot be
    /// read there any more; errors of [`Db::snapshot_at`], and of a commit.
    pub fn tag(&self, name: &str, moment: Moment) -> Result<TagInfo> {
        // The snapshot keeps the moment readable until the tag is known.
        let snapshot = Snapshot::of(&self.store, moment)?;
        tag_commits::create(&self.store, name, snapshot.read_at()?.glsn)
    }

    /// The tag with this name.
    ///
    /// # Errors
    /// [`InvalidInput::NoTag`](crate::InvalidInput::NoTag); [`Error::Behind`](crate::Error::Behind)
    /// if the commits of other processes cannot be applied.
    pub fn tag_at(&self, name: &str) -> Result<TagInfo> {
        tag_commits::find(&self.store, name).map(|tag| tag.info(name))
    }

    /// All tags, sorted by name.
    ///
    /// # Errors
    /// [`Error::Behind`](crate::Error::Behind) if the commits of other processes cannot be applied.
    pub fn tags(&self) -> Result<Vec<TagInfo>> {
        tag_commits::all(&self.store)
    }

    /// Deletes a tag. Its moment stays readable only as far as retention, snapshots and other tags
    /// keep it.
    ///
    /// # Errors
    /// [`InvalidInput::NoTag`](crate::InvalidInput::NoTag); the store is read-only, or the commit
    /// fails.
    pub fn delete_tag(&self, name: &str) -> Result<()> {
        tag_commits::delete(&self.store, name)
    }
}

impl From<TagInfo> for Moment {
    fn from(tag: TagInfo) -> Self {
        Self::Glsn(tag.glsn)
    }
}
