use super::*;
use futures_util::FutureExt;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use tokio::runtime::{Builder, Runtime};

/// A temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("watchcore-files-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Joins the files' texts; a text that ends in `!` is an incomplete value.
fn text(files: &[Vec<u8>]) -> Result<String, String> {
    let text = String::from_utf8(files.concat()).unwrap();
    if text.ends_with('!') { Err("half of it".into()) } else { Ok(text) }
}

fn reloaded(paths: Vec<PathBuf>) -> Result<Arc<Reloaded<String>>, String> {
    Reloaded::new("text", paths, Duration::ZERO, text).map(Arc::new)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap()
}

/// Kubernetes mounts a secret so: the files are links into a directory that is replaced as a whole, by another link.
#[tokio::test]
async fn links_to_a_replaced_directory_are_followed() {
    let scratch = Scratch::new();
    for name in ["one", "two"] {
        std::fs::create_dir(scratch.path(name)).unwrap();
        for (file, text) in [("key", "key of"), ("crt", "certificate of")] {
            let path = scratch.write(&format!("{name}/{file}"), &format!("{text} {name} "));
            // All files have the same age and length, and the age is old enough for equal stamps to mean "unchanged".
            File::options().write(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
    }
    symlink("one", scratch.path("..data")).unwrap();
    for name in ["key", "crt"] {
        symlink(format!("..data/{name}"), scratch.path(name)).unwrap();
    }
    let files = reloaded(vec![scratch.path("key"), scratch.path("crt")]).unwrap();
    assert_eq!(*files.current().await, "key of one certificate of one ");
    symlink("two", scratch.path("..new")).unwrap();
    std::fs::rename(scratch.path("..new"), scratch.path("..data")).unwrap();
    assert_eq!(*files.current().await, "key of two certificate of two ");
}

#[tokio::test]
async fn last_good_value_serves() {
    let scratch = Scratch::new();
    let path = scratch.write("text", "first");
    let files = reloaded(vec![path.clone()]).unwrap();
    for broken in ["half!", "half again!"] {
        scratch.write("text", broken);
        assert_eq!(*files.current().await, "first");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(*files.current().await, "first", "it is gone");
    std::fs::create_dir(&path).unwrap();
    assert_eq!(*files.current().await, "first", "a directory");
    std::fs::remove_dir(&path).unwrap();
    scratch.write("text", "second");
    assert_eq!(*files.current().await, "second", "the same length, right behind the other");
}

/// A wrong passphrase costs its key derivation once, not in each handshake.
#[tokio::test]
async fn wrong_files_are_tried_once() {
    let scratch = Scratch::new();
    let path = scratch.write("text", "first");
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let make = move |files: &[Vec<u8>]| {
        counted.fetch_add(1, Relaxed);
        text(files)
    };
    let files = Arc::new(Reloaded::new("text", vec![path.clone()], Duration::ZERO, make).unwrap());
    for (written, tried) in [("half!", 2), ("half again!", 3), ("second", 4), ("half!", 5)] {
        scratch.write("text", written);
        for _ in 0..5 {
            files.current().await;
        }
        assert_eq!(tries.load(Relaxed), tried, "{written}");
    }
    std::fs::remove_file(&path).unwrap();
    files.current().await;
    scratch.write("text", "third");
    assert_eq!((files.current().await.as_str(), tries.load(Relaxed)), ("third", 6));
}

/// Token lists, for instance, must not be used for ever after their file is gone.
#[tokio::test]
async fn value_with_a_limit_is_not_kept() {
    let scratch = Scratch::new();
    let path = scratch.write("text", "first");
    let limit = Duration::from_millis(50);
    let files = Arc::new(Reloaded::new("text", vec![path.clone()], Duration::ZERO, text).unwrap().usable_for(limit));
    let usable = async || {
        files.current().await;
        files.usable().map(|text| text.to_string())
    };
    let gone = async || {
        let gone = async {
            while usable().await.is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(10), gone).await.expect("it is believed for ever");
    };
    for second in ["second", "third"] {
        std::fs::remove_file(&path).unwrap();
        let from = Instant::now();
        gone().await;
        assert!(from.elapsed() >= limit && *files.latest() != second);
        scratch.write("text", second);
        assert_eq!(usable().await.as_deref(), Some(second), "it is there again");
    }
    scratch.write("text", "half!");
    gone().await;
}

#[tokio::test]
async fn what_is_no_regular_file_is_refused() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Each runs on its own thread, because opening a pipe without a writer would block.
    for path in [pipe, "/dev/zero".into(), scratch.0.clone()] {
        let (say, said) = mpsc::channel();
        let named = path.clone();
        std::thread::spawn(move || say.send(reloaded(vec![named]).err()));
        let error = said.recv_timeout(Duration::from_secs(10)).expect("an answer").expect("an error");
        assert_eq!(error, format!("{} is no regular file", path.display()));
    }
    let path = scratch.write("text", "");
    File::options().write(true).open(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
    let error = reloaded(vec![path]).err().expect("too large");
    assert!(error.ends_with("has more than 16777216 bytes"), "{error}");
}

/// A service outlives its runtime in tests and in programs that restart their server.
#[test]
fn runtime_that_ends_leaves_the_look_to_others() {
    let scratch = Scratch::new();
    let path = scratch.write("text", "first");
    let files = reloaded(vec![path]).unwrap();
    let first = runtime();
    let handle = first.handle().clone();
    first.shutdown_background();
    {
        // A task may still be polled while its runtime shuts down; spawning blocking work then fails.
        let _inside = handle.enter();
        assert_eq!(files.current().now_or_never().as_deref().map(String::as_str), Some("first"));
    }
    scratch.write("text", "second");
    let second = runtime();
    let seen = second.block_on(async {
        let read = async {
            while *files.current().await != "second" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(10), read).await
    });
    assert!(seen.is_ok(), "nobody looks any more");
}

/// Two callers ask at once after a change: both get the new contents.
#[tokio::test(start_paused = true)]
async fn look_is_for_all_who_wait() {
    let scratch = Scratch::new();
    let path = scratch.write("text", "first");
    let (enter, entered) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let make = move |files: &[Vec<u8>]| {
        if enter.send(()).is_ok() && files[0] == b"second" {
            let _ = wait.lock().unwrap().recv();
        }
        text(files)
    };
    let files = Arc::new(Reloaded::new("text", vec![path], Duration::ZERO, make).unwrap());
    entered.recv().unwrap();
    scratch.write("text", "second");
    let asked = files.clone();
    let one = tokio::spawn(async move { asked.current().await.to_string() });
    tokio::task::yield_now().await;
    entered.recv_timeout(Duration::from_secs(10)).expect("a look at the files");
    let mut other = Box::pin(files.current());
    assert_eq!(other.as_mut().now_or_never(), None, "it waits for the look that runs");
    drop(go);
    assert_eq!((other.await.as_str(), one.await.unwrap().as_str()), ("second", "second"));
}

/// A file system that does not answer blocks one thread, and no request.
#[test]
fn nobody_waits_for_ever() {
    let scratch = Scratch::new();
    let path = scratch.write("text", "first");
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let is_first = AtomicUsize::new(0);
    let stuck = move |files: &[Vec<u8>]| {
        if is_first.fetch_add(1, Relaxed) > 0 {
            let _ = wait.lock().unwrap().recv();
        }
        text(files)
    };
    let files = Reloaded::new("text", vec![path], Duration::ZERO, stuck).unwrap().usable_for(Duration::ZERO);
    let files = Arc::new(files);
    assert!(files.usable().is_some());
    scratch.write("text", "second");
    let runtime = runtime();
    let (say, said) = mpsc::channel();
    let asked = files.clone();
    std::thread::spawn(move || {
        let _ = say.send(runtime.block_on(asked.current()).to_string());
        runtime.shutdown_background();
    });
    let value = said.recv_timeout(Duration::from_secs(10));
    assert_eq!(files.usable(), None, "who may ask is not known while nobody can read it");
    drop(go);
    assert_eq!(value.as_deref(), Ok("first"));
}
