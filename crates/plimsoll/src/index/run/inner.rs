//! Inner pages: index blocks that lead from the root to the guides.
//!
//! ```text
//! 0          2        4             8
//! | children | height | first child | fences, each with its child |
//! ```
//!
//! `height` is 1 directly above guides and increases by one with each level. Invariant: children
//! are stored before their parent in the file.

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::page::PAGE_PAYLOAD_BYTES;

use crate::index::run::bytes::{u16_at, u32_at};
use crate::index::run::fences::{Fence, FenceDraft, Fences};

/// The kind byte of inner pages.
pub(crate) const INNER_PAGE: u8 = 18;

const FENCES_START: usize = 8;

/// An inner page that is being collected.
#[derive(Debug)]
pub(crate) struct InnerDraft {
    fences: FenceDraft,
    height: u16,
}

impl InnerDraft {
    /// An empty draft.
    pub(crate) fn new(height: u16) -> Self {
        Self { fences: FenceDraft::new(true), height }
    }

    /// Number of children collected.
    pub(crate) fn children(&self) -> usize {
        self.fences.children()
    }

    /// Whether a child after `fence` fits.
    pub(crate) fn has_room(&self, raw: &[u8], fence: Fence<'_>) -> bool {
        self.fences
            .bytes_with(raw, fence)
            .is_some_and(|bytes| FENCES_START + bytes <= PAGE_PAYLOAD_BYTES)
    }

    /// Adds a child, which must fit.
    pub(crate) fn add(&mut self, raw: &mut [u8], child: u32, fence: Fence<'_>) {
        self.fences.add(raw, child, fence);
    }

    /// The first child and the fence before it.
    pub(crate) fn first<'a>(&self, raw: &'a [u8]) -> (u32, Fence<'a>) {
        self.fences.first(raw)
    }

    /// Writes the page's payload and clears the draft. Returns the payload's length.
    pub(crate) fn finish(&mut self, raw: &[u8], payload: &mut [u8]) -> usize {
        payload[..2].copy_from_slice(&(self.fences.children() as u16).to_le_bytes());
        payload[2..4].copy_from_slice(&self.height.to_le_bytes());
        payload[4..8].copy_from_slice(&self.fences.first(raw).0.to_le_bytes());
        let bytes = FENCES_START + self.fences.bytes();
        self.fences.finish(raw, payload, FENCES_START);
        bytes
    }
}

/// Reads an inner page. Its methods accept any bytes and return `None` if they cannot be decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inner<'a> {
    children: usize,
    height: usize,
    first_child: u32,
    fences: Fences<'a>,
}

impl<'a> Inner<'a> {
    /// Reads the head of an inner page's payload.
    pub(crate) fn new(payload: &'a [u8]) -> Option<Self> {
        let children = u16_at(payload, 0)?;
        let fences = Fences::new(payload, FENCES_START, children.checked_sub(1)?, true)?;
        Some(Self {
            children,
            height: u16_at(payload, 2)?,
            first_child: u32_at(payload, 4)?,
            fences,
        })
    }

    /// The page of the child that contains (`key`, `glsn`).
    pub(crate) fn find(&self, key: &[u8], glsn: Glsn) -> Option<u32> {
        self.child(self.fences.find(key, glsn)?)
    }

    /// Number of children.
    pub(crate) fn children(&self) -> usize {
        self.children
    }

    /// Number of levels below it, without the leaves.
    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// The page of child `number`.
    pub(crate) fn child(&self, number: usize) -> Option<u32> {
        if number == 0 { Some(self.first_child) } else { self.fences.child(number) }
    }

    /// The separators of the children.
    pub(crate) fn fences(&self) -> &Fences<'a> {
        &self.fences
    }
}

/// Decodes a whole inner page.
///
/// # Errors
/// The fault of the page.
pub(crate) fn check_inner(payload: &[u8]) -> Result<Inner<'_>, &'static str> {
    let inner = Inner::new(payload).ok_or("the inner page's head is invalid")?;
    inner.fences.check()?;
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_inner_page_finds_each_of_its_children() {
        for key_bytes in (0..200).chain([4000, 4096]) {
            for below in [0, 1, u64::MAX] {
                let (mut raw, mut payload) = (vec![0; 16384], vec![0; PAGE_PAYLOAD_BYTES]);
                let mut draft = InnerDraft::new(1);
                // The keys have no common prefix. With a long `below`, the page fills up first,
                // otherwise the buffer.
                let key = |n: usize| {
                    [&((n as u32) << 22).to_be_bytes()[..], &vec![7; key_bytes]].concat()
                };
                let mut children = 0;
                while draft.has_room(&raw, Fence { key: &key(children), below }) {
                    draft.add(&mut raw, 9 + children as u32, Fence { key: &key(children), below });
                    children += 1;
                }
                assert!(children >= 3, "the tree is wide rather than deep");
                let bytes = draft.finish(&raw, &mut payload);
                let inner = check_inner(&payload[..bytes]).unwrap();
                assert_eq!((inner.children(), inner.height()), (children, 1));
                for n in 0..children {
                    assert_eq!(
                        inner.find(&key(n), Glsn(0)),
                        Some(9 + n as u32),
                        "{key_bytes} bytes, child {n}"
                    );
                }
            }
        }
    }
}
