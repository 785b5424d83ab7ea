//! Queues through the frames: those that are free, those that scans brought in, and those whose page nobody will want again. A frame
//! is in one of them or in none.

/// Which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Frames without a page.
    Free,
    /// Frames whose page only a scan touched, unless somebody touched it since.
    Scanned,
    /// Frames whose page nobody will want again, pinned when that became known. They count as scanned ones.
    Doomed,
}

impl Queue {
    /// Where its frames are counted: whoever unlinks a frame need not know whether it is doomed.
    fn count(self) -> usize {
        match self {
            Self::Free => 0,
            Self::Scanned | Self::Doomed => 1,
        }
    }
}

/// Rings of frames, closed by one place for each queue before the frames' own. A place holds its neighbours plus one; 0 stands for
/// a place in no ring, so that the memory of frames never used is never touched.
pub(super) struct Queues {
    next: Vec<u32>,
    prev: Vec<u32>,
    lens: [usize; 2],
}

/// Queues, and the places that close them.
const ENDS: usize = 3;

impl Queues {
    /// Bytes of heap for so many frames.
    pub(super) fn heap_bytes(frames: usize) -> usize {
        2 * (frames + ENDS) * size_of::<u32>()
    }

    pub(super) fn new(frames: usize) -> Self {
        let mut queues = Self { next: vec![0; frames + ENDS], prev: vec![0; frames + ENDS], lens: [0; 2] };
        for end in 0..ENDS {
            (queues.next[end], queues.prev[end]) = (end as u32 + 1, end as u32 + 1);
        }
        queues
    }

    /// Makes places for `frames` in all.
    pub(super) fn grow(&mut self, frames: usize) {
        for places in [&mut self.next, &mut self.prev] {
            places.reserve_exact((frames + ENDS).saturating_sub(places.len()));
            places.resize((frames + ENDS).max(places.len()), 0);
        }
    }

    /// Frames in a queue, and in those that count with it.
    pub(super) fn len(&self, queue: Queue) -> usize {
        self.lens[queue.count()]
    }

    pub(super) fn push_front(&mut self, queue: Queue, frame: u32) {
        let end = queue as usize;
        self.insert(queue, end, place(frame), self.next[end] as usize - 1);
    }

    pub(super) fn push_back(&mut self, queue: Queue, frame: u32) {
        let end = queue as usize;
        self.insert(queue, self.prev[end] as usize - 1, place(frame), end);
    }

    pub(super) fn pop_front(&mut self, queue: Queue) -> Option<u32> {
        let first = self.next[queue as usize] as usize - 1;
        (first >= ENDS).then(|| {
            let frame = (first - ENDS) as u32;
            self.unlink(queue, frame);
            frame
        })
    }

    /// Takes a frame out of `queue` or of one that counts with it, the only ones that it can be in, if it is.
    pub(super) fn unlink(&mut self, queue: Queue, frame: u32) {
        let at = place(frame);
        let (prev, next) = (self.prev[at], self.next[at]);
        if next > 0 {
            self.next[prev as usize - 1] = next;
            self.prev[next as usize - 1] = prev;
            (self.prev[at], self.next[at]) = (0, 0);
            self.lens[queue.count()] -= 1;
        }
    }

    fn insert(&mut self, queue: Queue, prev: usize, at: usize, next: usize) {
        assert_eq!(self.next[at], 0, "a frame is in one queue at most");
        (self.prev[at], self.next[at]) = (prev as u32 + 1, next as u32 + 1);
        self.next[prev] = at as u32 + 1;
        self.prev[next] = at as u32 + 1;
        self.lens[queue.count()] += 1;
    }
}

fn place(frame: u32) -> usize {
    frame as usize + ENDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_in_the_order_of_their_queue_or_when_unlinked() {
        let mut queues = Queues::new(6);
        (0..4).for_each(|frame| queues.push_back(Queue::Scanned, frame));
        queues.push_front(Queue::Free, 4);
        queues.push_front(Queue::Free, 5);
        queues.unlink(Queue::Scanned, 1);
        queues.unlink(Queue::Scanned, 1);
        queues.grow(8);
        assert_eq!([Queue::Free, Queue::Scanned].map(|queue| queues.len(queue)), [2, 3]);
        queues.push_back(Queue::Free, 7);
        queues.push_back(Queue::Doomed, 1);
        queues.push_back(Queue::Doomed, 6);
        assert_eq!(queues.len(Queue::Scanned), 5);
        queues.unlink(Queue::Scanned, 1);
        let mut all = |queue| std::iter::from_fn(|| queues.pop_front(queue)).collect::<Vec<_>>();
        assert_eq!(all(Queue::Scanned), [0, 2, 3]);
        assert_eq!(all(Queue::Free), [5, 4, 7]);
        assert_eq!(all(Queue::Free), []);
        assert_eq!(all(Queue::Doomed), [6]);
        assert_eq!([Queue::Free, Queue::Scanned].map(|queue| queues.len(queue)), [0, 0]);
    }
}
