//! Two queues through the frames: those that are free, and those that scans brought in. A frame is in one of them or in none.

/// Which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Frames without a page.
    Free,
    /// Frames whose page only a scan touched, unless somebody touched it since.
    Scanned,
}

/// Rings of frames, closed by one place for each queue behind the frames' own. A place holds its neighbours plus one; 0 stands for
/// a place in no ring, so that the memory of frames never used is never touched.
pub(super) struct Queues {
    next: Vec<u32>,
    prev: Vec<u32>,
}

impl Queues {
    /// Bytes of heap for so many frames.
    pub(super) fn heap_bytes(frames: usize) -> usize {
        2 * (frames + 2) * size_of::<u32>()
    }

    pub(super) fn new(frames: usize) -> Self {
        let mut queues = Self { next: vec![0; frames + 2], prev: vec![0; frames + 2] };
        for queue in [Queue::Free, Queue::Scanned] {
            let end = queues.end(queue);
            (queues.next[end], queues.prev[end]) = (end as u32 + 1, end as u32 + 1);
        }
        queues
    }

    pub(super) fn push_front(&mut self, queue: Queue, frame: u32) {
        let end = self.end(queue);
        self.insert(end, frame as usize, self.next[end] as usize - 1);
    }

    pub(super) fn push_back(&mut self, queue: Queue, frame: u32) {
        let end = self.end(queue);
        self.insert(self.prev[end] as usize - 1, frame as usize, end);
    }

    pub(super) fn pop_front(&mut self, queue: Queue) -> Option<u32> {
        let end = self.end(queue);
        let first = self.next[end] as usize - 1;
        (first != end).then(|| {
            self.unlink(first as u32);
            first as u32
        })
    }

    /// Takes a frame out of whichever queue it is in.
    pub(super) fn unlink(&mut self, frame: u32) {
        let at = frame as usize;
        let (prev, next) = (self.prev[at], self.next[at]);
        if next > 0 {
            self.next[prev as usize - 1] = next;
            self.prev[next as usize - 1] = prev;
            (self.prev[at], self.next[at]) = (0, 0);
        }
    }

    fn insert(&mut self, prev: usize, at: usize, next: usize) {
        assert_eq!(self.next[at], 0, "a frame is in one queue at most");
        (self.prev[at], self.next[at]) = (prev as u32 + 1, next as u32 + 1);
        self.next[prev] = at as u32 + 1;
        self.prev[next] = at as u32 + 1;
    }

    fn end(&self, queue: Queue) -> usize {
        self.next.len() - 2 + queue as usize
    }
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
        queues.unlink(1);
        queues.unlink(1);
        let mut all = |queue| std::iter::from_fn(|| queues.pop_front(queue)).collect::<Vec<_>>();
        assert_eq!(all(Queue::Scanned), [0, 2, 3]);
        assert_eq!(all(Queue::Free), [5, 4]);
        assert_eq!(all(Queue::Free), []);
    }
}
