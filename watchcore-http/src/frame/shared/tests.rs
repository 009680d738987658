use super::*;
use crate::object::Form;
use bytes::Bytes;

fn frame(text: &str) -> Frame {
    Frame::new(0, |out| out.extend_from_slice(text.as_bytes()))
}

fn get(frames: &Frames<Form>, sequence: u64, form: Form, kind: Kind, text: &str) -> String {
    let frame = frames.get(sequence, form, kind, || Some(frame(text))).unwrap();
    String::from_utf8(frame.payload().to_vec()).unwrap()
}

#[test]
fn frame_is_a_chunk_and_its_payload() {
    let long = "x".repeat(300);
    let one = frame(&format!("{long}\n"));
    assert_eq!(&one.chunk()[..], format!("12d\r\n{long}\n\r\n").as_bytes());
    assert_eq!((&one.payload()[..], &one.message()[..]), (format!("{long}\n").as_bytes(), long.as_bytes()));
}

/// The expected length is a guess, and some forms send only part of a value; a stored frame must not keep the excess.
#[test]
fn frame_keeps_no_room_that_is_unused() {
    let one = Frame::new(1 << 20, |out| out.extend_from_slice(b"short"));
    let chunk = one.chunk().clone();
    drop(one);
    let memory = chunk.try_into_mut().expect("nobody else has it");
    assert!(memory.capacity() < 100, "{} bytes", memory.capacity());
}

/// The record that an event is not sent is made once, and counts towards the limit.
#[test]
fn what_does_not_go_out_is_kept() {
    let frames = Frames::new(1000);
    let mut looked = 0;
    for _ in 0..3 {
        let none = frames.get(7, Form::Json, Kind::Added, || {
            looked += 1;
            None
        });
        assert!(none.is_none());
    }
    assert_eq!(looked, 1);
    let (found, made, bytes) = frames.counters();
    assert_eq!((found, made), (0, 0), "no frame");
    assert!(bytes > 0, "it leaves like any other");
    assert_eq!(get(&frames, 7, Form::Json, Kind::Modified, "another"), "another");
    let none = Frames::new(0);
    assert!(none.get(7, Form::Json, Kind::Added, || None).is_none() && none.slots.get().is_none());
}

#[test]
fn event_is_framed_once_a_form_and_kind() {
    let frames = Frames::new(1000);
    assert_eq!(get(&frames, 7, Form::Json, Kind::Added, "one"), "one");
    assert_eq!(get(&frames, 7, Form::Json, Kind::Added, "two"), "one", "kept");
    assert_eq!(get(&frames, 7, Form::Json, Kind::Modified, "modified"), "modified", "another kind is another frame");
    assert_eq!(get(&frames, 7, Form::Metadata, Kind::Added, "metadata"), "metadata");
    assert_eq!(get(&frames, 8, Form::Json, Kind::Added, "next"), "next");
    let (found, made, bytes) = frames.counters();
    assert_eq!((found, made), (1, 4));
    assert_eq!(bytes, ["one", "modified", "metadata", "next"].map(|text| text.len() + 5).iter().sum::<usize>());
}

#[test]
fn oldest_frames_leave_first() {
    let frames = Frames::new(30);
    for sequence in [1, 2, 3, 4, 5] {
        get(&frames, sequence, Form::Json, Kind::Added, "12345");
    }
    assert_eq!(frames.counters().2, 30, "three of ten bytes");
    assert_eq!(get(&frames, 5, Form::Json, Kind::Added, "again"), "12345");
    assert_eq!(get(&frames, 2, Form::Json, Kind::Added, "again"), "again", "it had left");
    assert_eq!(get(&frames, 3, Form::Json, Kind::Added, "again"), "12345", "and pushed out nothing");
    let huge = "x".repeat(100);
    assert_eq!(get(&frames, 6, Form::Json, Kind::Added, &huge), huge, "larger than all that is kept");
    assert_eq!(frames.counters().2, 30);
}

/// An unlimited cache must not allocate unlimited slots.
#[test]
fn places_have_a_bound_of_their_own() {
    let frames = Frames::new(usize::MAX);
    assert_eq!(get(&frames, 1, Form::Json, Kind::Added, "one"), "one");
    assert_eq!(get(&frames, 1, Form::Json, Kind::Added, "again"), "one", "kept");
    assert_eq!(frames.slots.get().unwrap().len(), MAX_SLOTS);
}

/// Two events whose sequence numbers are one round apart share a slot: the later one keeps it, whichever comes first.
#[test]
fn a_place_is_the_later_events() {
    let frames = Frames::new(1000);
    let later = 7 + MIN_SLOTS as u64;
    assert_eq!(get(&frames, 7, Form::Json, Kind::Added, "early"), "early");
    assert_eq!(get(&frames, later, Form::Json, Kind::Added, "later"), "later");
    assert_eq!(get(&frames, 7, Form::Json, Kind::Added, "again"), "again", "it had to leave");
    assert_eq!(get(&frames, later, Form::Json, Kind::Added, "again"), "later", "and does not come back");
    assert_eq!(frames.counters().2, "later".len() + 5);
}

/// A lookup never returns another event's frame while other threads store and evict.
#[test]
fn many_ask_at_once() {
    let frames = Frames::new(4000);
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let frames = &frames;
            threads.spawn(move || {
                for sequence in 0..20_000_u64 {
                    let form = if (sequence + thread) % 3 == 0 { Form::Metadata } else { Form::Json };
                    let expected = format!("{sequence} {form:?}");
                    assert_eq!(get(frames, sequence, form, Kind::Added, &expected), expected);
                }
            });
        }
    });
    let (found, made, bytes) = frames.counters();
    assert_eq!(found + made, 80_000);
    let kept = frames.lock().events.values().sum::<usize>();
    assert!(bytes <= 4000 && bytes == kept, "{bytes} {kept}");
    let slots = frames.slots.get().unwrap().iter();
    let held =
        slots.flat_map(|slot| slot.read().unwrap().frames.iter().map(|one| bytes_of(&one.2)).collect::<Vec<_>>());
    assert_eq!(held.sum::<usize>(), bytes);
}

/// The chunk refers to the value in the cache's memory.
#[test]
fn value_is_in_the_chunk_and_not_copied() {
    let value = Bytes::from(vec![b'x'; 300]);
    let frame = Frame::around(1, |out| out.push(b'<'), value.clone(), b">\n");
    let chunk = frame.chunks().collect::<Vec<_>>();
    assert_eq!(chunk.concat(), [b"12f\r\n<", &value[..], b">\n\r\n"].concat());
    assert_eq!((chunk[1].as_ptr(), frame.len()), (value.as_ptr(), chunk.concat().len()));
    assert_eq!(frame.payload(), [b"<", &value[..], b">\n"].concat());
    assert_eq!(frame.message(), [b"<", &value[..], b">"].concat());
}
