//! The pool's queues of frames: free, scanned, on probation, and doomed (discarded while pinned). A
//! frame is in at most one of them.

/// The queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Frames without a page.
    Free,
    /// Frames whose page was brought in by a scan; it may have been accessed since.
    Scanned,
    /// Frames whose page was discarded while pinned.
    Doomed,
    /// Frames whose page was loaded cold, in load order. They may have been accessed since.
    Probation,
}

/// Number of queues, and of sentinels.
const ENDS: usize = 4;

/// Rings of frames, each closed by a sentinel; the sentinels precede the frames. A link is stored
/// as the place plus one. So 0 means no ring, and the memory of unused frames stays untouched.
pub(super) struct Queues {
    next: Vec<u32>,
    prev: Vec<u32>,
    /// Indexed by place: its queue plus one; 0 if it is in none.
    queue: Vec<u8>,
    lens: [usize; ENDS],
}

impl Queues {
    /// Heap bytes for this many frames.
    pub(super) fn heap_bytes(frames: usize) -> usize {
        (frames + ENDS) * (2 * size_of::<u32>() + size_of::<u8>())
    }

    pub(super) fn new(frames: usize) -> Self {
        let places = frames + ENDS;
        let mut queues = Self {
            next: vec![0; places],
            prev: vec![0; places],
            queue: vec![0; places],
            lens: [0; ENDS],
        };
        for end in 0..ENDS {
            (queues.next[end], queues.prev[end]) = (end as u32 + 1, end as u32 + 1);
        }
        queues
    }

    /// Grows to places for `frames` frames in all.
    pub(super) fn grow(&mut self, frames: usize) {
        grow(&mut self.next, frames + ENDS);
        grow(&mut self.prev, frames + ENDS);
        grow(&mut self.queue, frames + ENDS);
    }

    /// Shrinks to places for `frames` frames; the frames after them are in no queue.
    pub(super) fn shrink(&mut self, frames: usize) {
        let places = frames + ENDS;
        assert!(
            self.queue[places..].iter().all(|&queue| queue == 0),
            "a removed frame is in no queue"
        );
        shrink(&mut self.next, places);
        shrink(&mut self.prev, places);
        shrink(&mut self.queue, places);
    }

    /// Frames in a queue.
    pub(super) fn len(&self, queue: Queue) -> usize {
        self.lens[queue as usize]
    }

    /// Whether a frame is in no queue.
    pub(super) fn is_out(&self, frame: u32) -> bool {
        self.queue[place(frame)] == 0
    }

    /// The queue of a frame.
    pub(super) fn of(&self, frame: u32) -> Option<Queue> {
        let queues = [Queue::Free, Queue::Scanned, Queue::Doomed, Queue::Probation];
        queues.into_iter().find(|&queue| self.queue[place(frame)] == queue as u8 + 1)
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
            self.unlink(frame);
            frame
        })
    }

    /// Removes a frame from its queue, if it is in one.
    pub(super) fn unlink(&mut self, frame: u32) {
        let at = place(frame);
        if self.queue[at] > 0 {
            let (prev, next) = (self.prev[at], self.next[at]);
            self.next[prev as usize - 1] = next;
            self.prev[next as usize - 1] = prev;
            self.lens[self.queue[at] as usize - 1] -= 1;
            self.queue[at] = 0;
        }
    }

    fn insert(&mut self, queue: Queue, prev: usize, at: usize, next: usize) {
        assert_eq!(self.queue[at], 0, "a frame is in one queue at most");
        self.queue[at] = queue as u8 + 1;
        (self.prev[at], self.next[at]) = (prev as u32 + 1, next as u32 + 1);
        self.next[prev] = at as u32 + 1;
        self.prev[next] = at as u32 + 1;
        self.lens[queue as usize] += 1;
    }
}

fn place(frame: u32) -> usize {
    frame as usize + ENDS
}

fn grow<T: Copy + Default>(places: &mut Vec<T>, len: usize) {
    places.reserve_exact(len.saturating_sub(places.len()));
    places.resize(len.max(places.len()), T::default());
}

fn shrink<T>(places: &mut Vec<T>, len: usize) {
    places.truncate(len);
    places.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_in_queue_order_or_when_unlinked() {
        let mut queues = Queues::new(6);
        (0..4).for_each(|frame| queues.push_back(Queue::Scanned, frame));
        queues.push_front(Queue::Free, 4);
        queues.push_front(Queue::Free, 5);
        queues.unlink(1);
        queues.unlink(1);
        assert!(queues.is_out(1) && !queues.is_out(2));
        queues.grow(8);
        assert_eq!([Queue::Free, Queue::Scanned].map(|queue| queues.len(queue)), [2, 3]);
        queues.push_back(Queue::Free, 7);
        queues.push_back(Queue::Doomed, 1);
        queues.push_back(Queue::Doomed, 6);
        queues.unlink(1);
        queues.push_back(Queue::Probation, 1);
        assert_eq!(
            [Queue::Scanned, Queue::Doomed, Queue::Probation].map(|queue| queues.len(queue)),
            [3, 1, 1]
        );
        assert_eq!(
            [0, 7, 1, 6].map(|frame| queues.of(frame)),
            [Some(Queue::Scanned), Some(Queue::Free), Some(Queue::Probation), Some(Queue::Doomed)]
        );
        let mut all = |queue| std::iter::from_fn(|| queues.pop_front(queue)).collect::<Vec<_>>();
        assert_eq!(all(Queue::Scanned), [0, 2, 3]);
        assert_eq!(all(Queue::Free), [5, 4, 7]);
        assert_eq!(all(Queue::Free), []);
        assert_eq!(all(Queue::Doomed), [6]);
        assert_eq!(all(Queue::Probation), [1]);
        assert_eq!(queues.lens, [0; ENDS]);
        queues.shrink(2);
        assert_eq!((queues.of(1), queues.queue.capacity()), (None, 2 + ENDS));
        queues.push_back(Queue::Scanned, 1);
        assert_eq!(queues.pop_front(Queue::Scanned), Some(1));
    }
}
