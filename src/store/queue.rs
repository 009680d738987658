//! A queue that grows by chunks: adding to it never moves what it holds.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// Values of a chunk.
const CHUNK: usize = 1024;

/// A queue, first in, first out: the writer's tombstones in the order of their events.
pub(crate) struct Queue<T> {
    /// Each chunk has at least one entry.
    chunks: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { chunks: VecDeque::new(), len: 0 }
    }
}

impl<T> Queue<T> {
    pub(crate) fn push_back(&mut self, value: T) {
        self.len += 1;
        match self.chunks.back_mut() {
            Some(chunk) if chunk.len() < chunk.capacity() => chunk.push_back(value),
            _ => {
                // The first chunk is small: most queues stay so.
                let mut chunk = VecDeque::with_capacity(if self.len == 1 { 16 } else { CHUNK });
                chunk.push_back(value);
                self.chunks.push_back(chunk);
            }
        }
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.chunks.front()?.front()
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let chunk = self.chunks.front_mut()?;
        let value = chunk.pop_front();
        self.len -= usize::from(value.is_some());
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        value
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the chunks.
    pub(crate) fn bytes(&self) -> usize {
        let chunks = if self.chunks.is_empty() { 0 } else { (self.chunks.len() - 1) * CHUNK + 16 };
        chunks * size_of::<T>()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn queue_is_first_in_first_out() {
        let mut queue = Queue::default();
        let mut next = 0;
        for round in 0..50 {
            (0..200).for_each(|value| queue.push_back(round * 200 + value));
            assert_eq!(queue.front(), Some(&next));
            for _ in 0..if round < 40 { 100 } else { 600 } {
                assert_eq!(queue.pop_front(), (queue.len() > 0 || next < (round + 1) * 200).then_some(next));
                next += 1;
            }
        }
        assert_eq!((queue.pop_front(), queue.len(), queue.bytes()), (None, 0, 0));
    }
}
