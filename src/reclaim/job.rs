//! Work for the thread that frees.

/// Something to be done on the reclaimer thread.
pub(crate) enum Job {
    Call(Box<dyn FnOnce() + Send>),
    /// A count of a [`HeapArc`](crate::heap::HeapArc) by its raw pointer, and what drops it: needs no memory of its own.
    Release(*mut (), unsafe fn(*mut ())),
}

// SAFETY: a call is Send; a count is of a type that any thread may release: `Job::of` and the table's pages.
unsafe impl Send for Job {}

impl<F: FnOnce() + Send + 'static> From<Box<F>> for Job {
    fn from(call: Box<F>) -> Job {
        Job::Call(call)
    }
}

impl Job {
    pub(super) fn run(self) {
        match self {
            Job::Call(call) => call(),
            // SAFETY: the job has one count at `place`, which `release` drops; a job runs once.
            Job::Release(place, release) => unsafe { release(place) },
        }
    }
}
