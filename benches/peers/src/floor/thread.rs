//! A thread that waits as a task does.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static WAKER: Waker = Arc::new(Unpark(std::thread::current())).into();
}

/// Parks the thread until it is ready.
pub fn wait<T>(mut poll: impl FnMut(&mut Context) -> Poll<T>) -> T {
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            match poll(&mut context) {
                Poll::Ready(value) => return value,
                Poll::Pending => std::thread::park(),
            }
        }
    })
}
