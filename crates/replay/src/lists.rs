//! Doubly linked lists in one array, for the models of policies.

/// An entry of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Node {
    pub(crate) hash: u64,
    pub(crate) bytes: u64,
    pub(crate) list: u8,
    pub(crate) marked: bool,
    pub(crate) older: Option<u32>,
    pub(crate) younger: Option<u32>,
}

/// The ends of a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    pub(crate) oldest: Option<u32>,
    youngest: Option<u32>,
    pub(crate) bytes: u64,
    pub(crate) len: usize,
}

/// The entries of all lists.
#[derive(Debug, Default)]
pub(crate) struct Links {
    nodes: Vec<Node>,
    free: Vec<u32>,
}

impl Links {
    pub(crate) fn node(&self, place: u32) -> Node {
        self.nodes[place as usize]
    }

    pub(crate) fn mark(&mut self, place: u32, marked: bool) {
        self.nodes[place as usize].marked = marked;
    }

    /// Adds a new entry at the young end of a list; returns its place.
    pub(crate) fn enter(&mut self, list: &mut List, number: u8, hash: u64, bytes: u64) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() as u32 - 1
        });
        self.push(list, place, number, Node { hash, bytes, ..Node::default() });
        place
    }

    /// Pushes an unlinked entry at the young end of a list.
    pub(crate) fn push(&mut self, list: &mut List, place: u32, number: u8, node: Node) {
        self.nodes[place as usize] =
            Node { list: number, older: list.youngest, younger: None, ..node };
        match list.youngest {
            Some(youngest) => self.nodes[youngest as usize].younger = Some(place),
            None => list.oldest = Some(place),
        }
        list.youngest = Some(place);
        list.bytes += node.bytes;
        list.len += 1;
    }

    /// Unlinks an entry from its list.
    pub(crate) fn unlink(&mut self, list: &mut List, place: u32) -> Node {
        let node = self.node(place);
        match node.older {
            Some(older) => self.nodes[older as usize].younger = node.younger,
            None => list.oldest = node.younger,
        }
        match node.younger {
            Some(younger) => self.nodes[younger as usize].older = node.older,
            None => list.youngest = node.older,
        }
        list.bytes -= node.bytes;
        list.len -= 1;
        node
    }

    /// Unlinks an entry and frees its place.
    pub(crate) fn remove(&mut self, list: &mut List, place: u32) {
        self.unlink(list, place);
        self.free.push(place);
    }
}
