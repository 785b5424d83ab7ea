//! Buckets with faults beneath the calls of this crate: test support.

use std::cell::RefCell;
use std::sync::Arc;

use plimsoll_archive::Bucket;

/// Puts a bucket with faults before another one.
pub type Wrap = Arc<dyn Fn(Arc<dyn Bucket>) -> Arc<dyn Bucket>>;

thread_local! {
    static WRAP: RefCell<Option<Wrap>> = const { RefCell::new(None) };
}

/// Wraps the buckets that calls of this thread open from now on.
pub fn wrap_buckets(wrap: Option<Wrap>) {
    WRAP.with(|hook| *hook.borrow_mut() = wrap);
}

pub(crate) fn wrapped(bucket: Arc<dyn Bucket>) -> Arc<dyn Bucket> {
    let wrap = WRAP.with(|hook| hook.borrow().clone());
    wrap.map_or_else(|| Arc::clone(&bucket), |wrap| wrap(Arc::clone(&bucket)))
}
