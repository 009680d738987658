//! A server that is nothing but a loop: ready bytes to as many sockets. What a delivery costs at least.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

/// Takes watchers, and does what its standard input says: `length count` writes so many frames of so many bytes to each,
/// one call of the system each. Each frame ends in the text for which watchers wait. Answers `done` on standard output.
pub(crate) fn serve(marker: &str) -> ! {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    println!("{}", listener.local_addr().expect("bound"));
    let (give, take) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let socket = greeted(socket);
            if give.send(socket).is_err() {
                return;
            }
        }
    });
    let mut sockets: Vec<TcpStream> = Vec::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        sockets.extend(take.try_iter());
        let mut words = line.split(' ').map(|word| word.parse::<usize>().expect("a number"));
        let (length, count) = (words.next().expect("a length"), words.next().expect("a count"));
        let mut frame = vec![b'x'; length - marker.len()];
        frame.extend_from_slice(marker.as_bytes());
        for _ in 0..count {
            for socket in &mut sockets {
                socket.write_all(&frame).expect("a watcher that reads");
            }
        }
        println!("done");
    }
    std::process::exit(0)
}

/// Reads a request and answers with a head.
fn greeted(mut socket: TcpStream) -> TcpStream {
    let mut reader = BufReader::new(Read::by_ref(&mut socket));
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        line.clear();
    }
    drop(reader);
    socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").expect("a watcher");
    socket
}
