//! What a process with emulated devices answers on its socket to one that sends it anything, and when it has one.
//!
//! # Safety
//! A forked child waits and ends, and calls nothing else.
#![allow(unsafe_code)]

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use super::{
    Network,
    raw::{ALL, Device, QUEUE_PAIR, attributes, connect, number, post_receive},
};
use crate::support::{Child, LIMIT, Parent, block_until, child, this_test};

/// A frame: its length before it.
fn frame(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

/// A request: kind 1, a number, nine numbers of 4 bytes and three of 8, and what is sent.
fn request(sequence: u64, numbers: [u32; 9], address: u64, data: &[u8]) -> Vec<u8> {
    let mut body = vec![1];
    body.extend(sequence.to_le_bytes());
    for number in numbers {
        body.extend(number.to_le_bytes());
    }
    for number in [address, 0, 0] {
        body.extend(number.to_le_bytes());
    }
    body.extend(data);
    frame(&body)
}

/// The answer to a request: its number, and how it went.
fn answer(stream: &mut UnixStream) -> (u64, u32) {
    let mut bytes = [0; 21];
    stream.read_exact(&mut bytes).expect("an answer");
    let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes);
    let length = word(0).expect("4 bytes");
    assert!(length >= 17 && bytes[4] == 2, "{bytes:?}");
    let mut rest = vec![0; length as usize - 17];
    stream.read_exact(&mut rest).expect("what it brings");
    let sequence = bytes[5..13].try_into().map(u64::from_le_bytes);
    (sequence.expect("8 bytes"), word(17).expect("4 bytes"))
}

fn reach(folder: &Path) -> UnixStream {
    let stream = UnixStream::connect(folder.join("1.socket")).expect("its socket");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream
}

/// That the other end has closed it.
#[track_caller]
fn is_closed(mut stream: UnixStream) {
    match stream.read(&mut [0; 64]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("it is not closed: {other:?}"),
    }
}

/// The process goes on, whatever came; a good request is carried out after all of it.
#[test]
fn malformed_frames_end_the_connection_alone() {
    if let Some(mut parent) = child("serves") {
        let device = Device::open(0);
        let qp = device.queue_pair(std::ptr::null_mut());
        // The peer says that it is this one.
        connect(qp, &attributes(0x77_0001, device.gid));
        let region = device.register(ALL);
        let piece = [region.piece(64)];
        assert_eq!(post_receive(device.context, QUEUE_PAIR, qp, 9, &piece), 0);
        parent.say(format!("{} {} {}", number(qp), region.addr, region.rkey));
        assert_eq!(hear(&mut parent), "receive");
        assert_eq!(post_receive(device.context, QUEUE_PAIR, qp, 10, &piece), 0);
        assert_eq!(hear(&mut parent), "end");
        let ends = device.poll();
        let ends = ends.iter().map(|wc| (wc.wr_id, wc.byte_len));
        assert!(ends.eq([(9, 3), (10, 3)]));
        return;
    }
    let network = Network::new();
    let folder = network.folder();
    let variables = [("EMULATED_VERBS_FOLDER", folder.to_str().expect("UTF-8"))];
    let mut process = Child::start(this_test!(), "serves", &variables);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let told = runtime.block_on(process.hear());
    let words: Vec<u64> = told
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let [qp, address, key] = words[..] else {
        panic!("{told}");
    };
    let (qp, key) = (qp as u32, key as u32);
    // From, to, device, first packet, opcode, flags, immediate data, length, key.
    let send = |opcode: u32, length: u32| [0x77_0001, qp, 0, 7, opcode, 0, 0, length, key];
    let good = request(1, send(2, 3), 0, b"abc");

    for bytes in [
        frame(&[]),
        frame(&[0; 40]),
        frame(&[9; 40]),
        // No such kind; an answer and a word about receives, where nothing was asked.
        frame(&[&[2][..], &[0; 16]].concat()),
        frame(&[&[3][..], &[0; 12]].concat()),
        // Longer than any message.
        vec![0xff; 4],
        // Cut short, and with more at the end.
        frame(&good[4..40]),
        frame(&[&good[4..], b"d"].concat()),
        // No such request, flags that are none, and bytes where none are sent.
        request(1, send(7, 0), 0, b""),
        request(1, send(u32::MAX, 0), 0, b""),
        request(1, [0x77_0001, qp, 0, 7, 2, 4, 0, 0, key], 0, b""),
        request(1, send(4, 8), address, b"12345678"),
        request(1, send(0, u32::MAX), address, b""),
    ] {
        let mut stream = reach(&folder);
        stream.write_all(&bytes).expect("taken");
        is_closed(stream);
    }
    // One that goes in the middle of a frame, and one that says nothing.
    let mut stream = reach(&folder);
    stream.write_all(&good[..20]).expect("taken");
    drop(stream);
    drop(reach(&folder));

    // Well-formed, and about nothing: no such queue pair, not its peer, another device, other packets.
    let mut stream = reach(&folder);
    for (sequence, numbers) in [
        (1, [0x77_0001, qp + 1, 0, 7, 2, 0, 0, 3, key]),
        (2, [0x77_0002, qp, 0, 7, 2, 0, 0, 3, key]),
        (3, [0x77_0001, qp, 1, 7, 2, 0, 0, 3, key]),
        (4, [0x77_0001, qp, u32::MAX, 7, 2, 0, 0, 3, key]),
        (5, [0x77_0001, qp, 0, 8, 2, 0, 0, 3, key]),
    ] {
        let bytes = request(sequence, numbers, 0, b"abc");
        stream.write_all(&bytes).expect("taken");
        assert_eq!(answer(&mut stream), (sequence, 12));
    }
    // In pieces, then two at once: the second finds no receive.
    let (now, later) = good.split_at(30);
    stream.write_all(now).expect("taken");
    let both = [later, &request(2, send(2, 3), 0, b"def")].concat();
    stream.write_all(&both).expect("taken");
    assert_eq!(answer(&mut stream), (1, 0));
    assert_eq!(answer(&mut stream), (2, u32::MAX));
    // One that waits for ever is told when there may be one, and no other; nor one that has gone.
    let patient = request(4, [0x77_0001, qp, 0, 7, 2, 2, 0, 3, key], 0, b"ghi");
    let mut gone = reach(&folder);
    gone.write_all(&patient).expect("taken");
    assert_eq!(answer(&mut gone), (4, u32::MAX));
    drop(gone);
    stream.write_all(&patient).expect("taken");
    assert_eq!(answer(&mut stream), (4, u32::MAX));
    process.say("receive");
    let mut told = [0; 17];
    stream.read_exact(&mut told).expect("a word");
    let ready = [&[3][..], &4_u64.to_le_bytes(), &0x77_0001_u32.to_le_bytes()].concat();
    assert_eq!(told[..], frame(&ready));
    stream.write_all(&patient).expect("taken");
    assert_eq!(answer(&mut stream), (4, 0));
    // A read of what is there, of more, and of what begins nowhere; the second ends the queue pair.
    let read = |address| request(3, send(4, 8), address, b"");
    stream.write_all(&read(address)).expect("taken");
    assert_eq!(answer(&mut stream), (3, 0));
    stream.write_all(&read(u64::MAX)).expect("taken");
    assert_eq!(answer(&mut stream), (3, 10));
    stream.write_all(&read(address)).expect("taken");
    assert_eq!(answer(&mut stream), (3, 12));
    process.say("end");
    process.finish();
}

/// Whether this process has the wire's thread.
fn has_thread() -> bool {
    let tasks = fs::read_dir("/proc/self/task").expect("a mounted /proc");
    let names = tasks
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("comm")));
    { names }.any(|name| name.is_ok_and(|name| name == "emulated wire\n"))
}

/// Whether nobody has the first slot.
fn is_free(folder: &Path) -> bool {
    File::open(folder.join("1.lock"))
        .expect("made once")
        .try_lock()
        .is_ok()
}

#[test]
fn the_thread_ends_with_the_last_device() {
    if child("opens").is_some() {
        let folder = std::env::var_os("EMULATED_VERBS_FOLDER").expect("given");
        let folder = Path::new(&folder);
        for _ in 0..3 {
            let devices = [Device::open(0), Device::open(1)];
            // A thread gives itself its name, and is seen for a moment after it has ended.
            block_until("the thread", has_thread);
            assert!(!is_free(folder));
            let [first, second] = devices;
            first.close();
            assert!(has_thread() && folder.join("1.socket").exists());
            second.close();
            assert!(is_free(folder));
            block_until("the thread's end", || !has_thread());
            assert!(!folder.join("1.socket").exists());
        }
        return;
    }
    let network = Network::new();
    let folder = network.folder();
    let variables = [("EMULATED_VERBS_FOLDER", folder.to_str().expect("UTF-8"))];
    Child::start(this_test!(), "opens", &variables).finish();
}

/// What waits for a process that was killed is told so, though a child of it lives on with all that is inherited.
#[test]
fn a_forked_child_does_not_keep_the_wire_open() {
    if let Some(mut parent) = child("forks") {
        let _device = Device::open(0);
        parent.say("open");
        assert_eq!(hear(&mut parent), "fork");
        // SAFETY: the child goes on to `wait_for_ever` alone.
        match unsafe { libc::fork() } {
            0 => wait_for_ever(),
            pid => parent.say(pid),
        }
        hear(&mut parent);
        return;
    }
    let network = Network::new();
    let folder = network.folder();
    let variables = [("EMULATED_VERBS_FOLDER", folder.to_str().expect("UTF-8"))];
    let mut process = Child::start(this_test!(), "forks", &variables);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    assert_eq!(runtime.block_on(process.hear()), "open");
    // Taken, before it forks.
    let mut stream = reach(&folder);
    let numbers = [0x77_0001, 0x01_0001, 0, 7, 2, 0, 0, 0, 0];
    stream
        .write_all(&request(1, numbers, 0, b""))
        .expect("taken");
    assert_eq!(answer(&mut stream), (1, 12));
    process.say("fork");
    let pid: i32 = runtime
        .block_on(process.hear())
        .parse()
        .expect("its number");
    process.kill();
    // The child may not have run yet: it closes this after the others.
    let closed = stream.read(&mut [0; 1]);
    let refused = UnixStream::connect(folder.join("1.socket"));
    let free = is_free(&folder);
    // SAFETY: a number; the process is there until it is killed, as it waits for that.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    let refused = refused.expect_err("nobody listens").kind();
    assert_eq!((refused, free), (ErrorKind::ConnectionRefused, true));
    assert_eq!(closed.expect("an end"), 0);
}

/// Of a forked child, which ends by itself if nobody ends it.
fn wait_for_ever() -> ! {
    // SAFETY: calls that a child may make.
    unsafe {
        libc::alarm(60);
        loop {
            libc::pause();
        }
    }
}

fn hear(parent: &mut Parent) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    runtime.block_on(parent.hear())
}
