//! What only rails can do: fail, one after the other, with messages on their way.
//!
//! # Safety
//! What is posted by hand has no bytes.
#![allow(unsafe_code)]

use std::{
    io::{IoSlice, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::sys::{
    signal::{SigSet, Signal},
    socket::{ControlMessage, MsgFlags, sendmsg},
};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    DeviceChoice, RcOptions,
    connection::Connection,
    connector::{Established, RcConnector},
    devices::Devices,
    iface::RcInterface,
    options::NAME,
    room::Room,
    wire::{Drained, FRAME, HEADER, Header, Kind},
};
use crate::{
    ErrorKind,
    driver::{
        rdmacm::Libraries,
        verbs::{SendFlags, SendRequest},
    },
    error::{Error, Result},
    transport::{
        Connected, Connector, Interface, Link, PeerInfo, Registry, Role, SendError, Sink,
        channel::Channel,
    },
    types::{Identity, LinkId},
    util::testing::run,
};

#[derive(Default)]
struct Seen {
    messages: Vec<(u64, usize)>,
    failed: Vec<Error>,
}

impl Sink for Seen {
    fn message(&mut self, _from: LinkId, _id: u8, header: u64, body: &[u8]) -> Result<()> {
        assert!(body.iter().all(|byte| *byte == header as u8));
        self.messages.push((header, body.len()));
        Ok(())
    }
    fn placed(&mut self, _from: LinkId, _token: u64) {}
    fn sent(&mut self, _from: LinkId, _token: u64) {}
    fn writable(&mut self, _from: LinkId) {}
    fn failed(&mut self, _from: LinkId, error: Error) {
        self.failed.push(error);
    }
}

struct End {
    interface: RcInterface,
    connection: Arc<Connection>,
    link: Box<dyn Link>,
    seen: Seen,
}

impl End {
    fn pass(&mut self) {
        // There is no poll: the control socket is looked at each time.
        self.interface.ready(0, true, false);
        self.interface.progress(64, &mut self.seen);
    }
}

/// A worker's room, on these of the emulated devices.
fn room(devices: DeviceChoice) -> Arc<Room> {
    let program = std::env::current_exe().unwrap();
    let options = RcOptions {
        libraries: Libraries {
            verbs: Some(program.with_file_name("libwharf_emulated_verbs.so")),
            cm: None,
        },
        devices,
        ..RcOptions::default()
    };
    Arc::new(Room::new(Arc::new(Devices::new(options))).unwrap())
}

/// Two workers' rooms, on the two emulated devices.
fn rooms() -> [Arc<Room>; 2] {
    [(); 2].map(|()| room(DeviceChoice::All))
}

fn peer() -> PeerInfo {
    PeerInfo {
        identity: Identity {
            boot: [1; 16],
            net_namespace: 0,
            pid_namespace: 0,
            user_namespace: 0,
            user: 0,
            pid: std::process::id(),
        },
        name: "the other end".to_owned(),
        certificates: None,
        origin: crate::transport::channel::Origin::default(),
    }
}

/// Connects the two.
fn met(connectors: &[RcConnector; 2]) -> [Connected; 2] {
    let peer = peer();
    let (near, far) = run(async {
        let (near, far) = tokio::net::UnixStream::pair().unwrap();
        let (mut near, mut far) = (Channel::unix(near), Channel::unix(far));
        tokio::try_join!(
            connectors[0].connect(&mut near, Role::Client, &peer),
            connectors[1].connect(&mut far, Role::Server, &peer)
        )
        .unwrap()
    });
    [near, far]
}

impl End {
    fn new(mut interface: RcInterface, connected: Connected) -> Self {
        let established = connected.of::<Established>(NAME).unwrap();
        let connection = Arc::clone(&established.0);
        let link = interface.attach(LinkId(1), Connected(established)).unwrap();
        Self {
            interface,
            connection,
            link,
            seen: Seen::default(),
        }
    }

    /// As a worker ends a link.
    fn end(mut self) -> RcInterface {
        self.interface.detach(LinkId(1));
        self.interface
    }
}

/// Two ends on the two emulated devices.
fn ends() -> [End; 2] {
    let rooms = rooms();
    let connectors = rooms.clone().map(RcConnector::new);
    let mut rooms = rooms.into_iter();
    met(&connectors).map(|connected| {
        let interface = RcInterface::new(rooms.next().unwrap());
        End::new(interface, connected)
    })
}

fn until(ends: &mut [End; 2], done: impl Fn(&[End; 2]) -> bool) {
    let start = Instant::now();
    while !done(ends) {
        assert!(start.elapsed() < Duration::from_secs(60), "waited too long");
        ends.iter_mut().for_each(End::pass);
    }
}

fn length(number: u64) -> usize {
    [0, 8, 200, 5000][number as usize % 4]
}

/// Sends the next messages from one end, progressing while there is no room.
fn send(ends: &mut [End; 2], from: usize, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let body = vec![number as u8; length(number)];
        let start = Instant::now();
        while let Err(error) = ends[from].link.am_bcopy(7, number, &[], &body) {
            assert!(matches!(error, SendError::Full), "{error:?}");
            assert!(start.elapsed() < Duration::from_secs(60), "no room");
            ends.iter_mut().for_each(End::pass);
        }
    }
}

#[test]
fn messages_go_over_the_next_rail() {
    let mut ends = ends();
    let rails = &ends[0].connection.rails;
    assert_eq!(rails.iter().filter(|rail| !rail.data).count(), 2);
    send(&mut ends, 0, 0..100);
    send(&mut ends, 1, 0..50);
    // The far end fails: what is sent from now on is lost until both know.
    ends[1].connection.rails[0].queue_pair.to_error().unwrap();
    for number in 100..140 {
        let body = vec![number as u8; length(number)];
        match ends[0].link.am_bcopy(7, number, &[], &body) {
            Ok(()) => {}
            Err(_) => {
                send(&mut ends, 0, number..140);
                break;
            }
        }
    }
    send(&mut ends, 1, 50..120);
    send(&mut ends, 0, 140..1000);
    until(&mut ends, |ends| {
        ends[1].seen.messages.len() == 1000 && ends[0].seen.messages.len() == 120
    });
    for (end, count) in [(1, 1000), (0, 120)] {
        let expected = (0..count).map(|number| (number, length(number)));
        assert!(ends[end].seen.messages.iter().copied().eq(expected));
        assert!(ends[end].seen.failed.is_empty());
        assert!(!ends[end].connection.is_alive(0) && ends[end].connection.is_alive(1));
    }
    until(&mut ends, |ends| {
        ends.iter().all(|end| end.link.is_flushed())
    });
    // The last one: the connection is over, at both ends.
    ends[0].connection.rails[1].queue_pair.to_error().unwrap();
    let start = Instant::now();
    while ends.iter().any(|end| end.seen.failed.is_empty()) {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody is told");
        for end in &mut ends {
            let _ = end.link.am_short(7, 1, &[]);
            end.pass();
            if !end.seen.failed.is_empty() {
                // As the worker does.
                end.interface.detach(LinkId(1));
                end.connection.hang_up();
            }
        }
    }
    assert!(ends.iter().all(|end| end.seen.failed.len() == 1));
    assert!(ends[0].seen.failed[0].to_string().contains("emu1"));
    let mut kinds = ends.iter().map(|end| end.seen.failed[0].kind());
    // Who has lost the last rail has no way there; the other end sees that one leaves.
    let ended = [ErrorKind::Unreachable, ErrorKind::ConnectionReset];
    assert!(kinds.all(|kind| ended.contains(&kind)));
}

#[test]
fn a_peer_that_does_not_answer_for_a_failed_rail_is_given_up() {
    let mut ends = ends();
    send(&mut ends, 0, 0..10);
    until(&mut ends, |ends| ends[1].seen.messages.len() == 10);
    let [near, _silent] = &mut ends;
    near.connection.rails[0].queue_pair.to_error().unwrap();
    let _ = near.link.am_short(7, 10, &[10; 8]);
    let start = Instant::now();
    while !near.connection.is_switching() {
        assert!(start.elapsed() < Duration::from_secs(60), "not noticed");
        near.pass();
    }
    near.pass();
    assert!(near.seen.failed.is_empty());
    near.interface.switches_are_late();
    while near.seen.failed.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "it waits");
        near.pass();
    }
    let error = &near.seen.failed[0];
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(error.to_string().contains("have not agreed"), "{error}");
}

/// The peer waits for a message that this side was told had arrived, and keeps no more, or for one that it never sent.
#[test]
fn messages_that_went_with_a_device_end_the_connection() {
    for (expected, ends_it) in [(9, true), (10, false), (11, true)] {
        let mut ends = ends();
        send(&mut ends, 0, 0..10);
        until(&mut ends, |ends| {
            ends[1].seen.messages.len() == 10 && ends[0].connection.is_flushed()
        });
        let frame = Drained { rail: 0, expected }.encode();
        let sent = ends[1].connection.control().send(&frame);
        assert_eq!(sent.unwrap(), frame.len());
        let near = &mut ends[0];
        let start = Instant::now();
        while near.connection.is_alive(0)
            || near.connection.is_switching() && near.seen.failed.is_empty()
        {
            assert!(start.elapsed() < Duration::from_secs(60), "it goes on");
            near.pass();
        }
        match ends_it {
            true => assert_eq!(near.seen.failed[0].kind(), ErrorKind::Unreachable),
            false => assert!(near.seen.failed.is_empty(), "{:?}", near.seen.failed),
        }
    }
}

/// Rails whose parts of the receives differ: what is offered is what every one of them has.
#[test]
fn the_smallest_window_is_offered() {
    let rooms = rooms();
    let device = Arc::clone(&rooms[1].devices.open().unwrap()[1]);
    let held: Vec<_> = (0..3)
        .map(|_| rooms[1].reserve(&device, 8, true).unwrap())
        .collect();
    let connectors = rooms.clone().map(RcConnector::new);
    let mut rooms = rooms.into_iter();
    let mut ends = met(&connectors).map(|connected| {
        let interface = RcInterface::new(rooms.next().unwrap());
        End::new(interface, connected)
    });
    let rails = ends[1].connection.rails.iter().filter(|rail| !rail.data);
    let windows: Vec<u32> = rails.map(|rail| rail.reservation.window).collect();
    assert!(windows[1] < windows[0], "{windows:?}");
    let mut sent = 0;
    while ends[0].link.am_short(7, 1, &[1; 8]).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, windows[1]);
    until(&mut ends, |ends| {
        ends[1].seen.messages.len() == sent as usize
    });
    drop(held);
}

/// A rail with a small part of the receives is offered, and the peer has none to go with it: credits come back all the same.
#[test]
fn a_rail_that_is_given_up_leaves_the_window_that_was_offered() {
    let rooms = [
        room(DeviceChoice::Only(vec!["emu0".to_owned()])),
        room(DeviceChoice::All),
    ];
    let device = Arc::clone(&rooms[1].devices.open().unwrap()[1]);
    let held: Vec<_> = (0..8)
        .map(|_| rooms[1].reserve(&device, 8, true).unwrap())
        .collect();
    let connectors = rooms.clone().map(RcConnector::new);
    let mut rooms = rooms.into_iter();
    let mut ends = met(&connectors).map(|connected| {
        let interface = RcInterface::new(rooms.next().unwrap());
        End::new(interface, connected)
    });
    let rails = ends[1].connection.rails.iter().filter(|rail| !rail.data);
    let windows: Vec<u32> = rails.map(|rail| rail.reservation.window).collect();
    assert!(windows.len() == 1 && windows[0] > 100, "{windows:?}");
    send(&mut ends, 0, 0..500);
    until(&mut ends, |ends| ends[1].seen.messages.len() == 500);
    drop(held);
}

/// A peer that sends over rails for one-sided operations, and goes: what it took of the receives that all share is found.
#[test]
fn receives_that_came_over_other_rails_are_posted_again() {
    let rooms = rooms();
    let connectors = rooms.clone().map(RcConnector::new);
    let [mut near, mut far] = rooms.map(RcInterface::new);
    for _ in 0..40 {
        let [one, other] = met(&connectors);
        let (one, mut other) = (End::new(near, one), End::new(far, other));
        // Its queue pairs live for a moment yet.
        other.interface.detach(LinkId(1));
        for rail in one.connection.rails.iter().filter(|rail| rail.data) {
            for number in 0..100 {
                let mut sends = [SendRequest::send(number, &[], SendFlags::SIGNALED)];
                // SAFETY: no bytes.
                unsafe { rail.queue_pair.post_send(&mut sends) }.unwrap();
            }
        }
        (far, near) = (other.end(), one.end());
    }
    let [one, other] = met(&connectors);
    let mut ends = [End::new(near, one), End::new(far, other)];
    for from in [0, 1] {
        send(&mut ends, from, 0..500);
        until(&mut ends, |ends| ends[1 - from].seen.messages.len() == 500);
    }
}

/// One end gives a set-up up when the other stands already and sends: before it has the last word of it, or with the connection made. What came then
/// lies in receives that all connections share.
#[test]
fn receives_of_set_ups_that_are_given_up_are_posted_again() {
    let rooms = rooms();
    let connectors = rooms.clone().map(RcConnector::new);
    let [mut near, mut far] = rooms.map(RcInterface::new);
    let peer = peer();
    let start = Instant::now();
    let (mut sent, mut round) = (0, 0);
    while sent < 3000 {
        assert!(start.elapsed() < Duration::from_secs(60), "{sent} sent");
        round += 1;
        let last_word = round % 2 == 0;
        let end = run(async {
            let [(near, mut one), (mut other, far_side)] =
                [(); 2].map(|()| tokio::net::UnixStream::pair().unwrap());
            let (mut near, mut far_side) = (Channel::unix(near), Channel::unix(far_side));
            let relay = async move {
                let (mut from_one, mut to_one) = one.split();
                let (mut from_other, mut to_other) = other.split();
                // Before the other has this end's offer there is nothing more to come of it.
                let mut offer = [0; 4096];
                let count = from_other.read(&mut offer).await.unwrap();
                to_one.write_all(&offer[..count]).await.unwrap();
                let there = tokio::io::copy(&mut from_one, &mut to_other);
                let back = async {
                    match last_word {
                        true => tokio::io::copy(&mut from_other, &mut to_one).await,
                        false => std::future::pending().await,
                    }
                };
                let _ = tokio::join!(there, back);
            };
            let relay = tokio::spawn(relay);
            let mut gives_up = connectors[0].connect(&mut near, Role::Client, &peer);
            let mut goes_on = connectors[1].connect(&mut far_side, Role::Server, &peer);
            let mut made = None;
            let connected = loop {
                tokio::select! {
                    one = &mut gives_up, if made.is_none() => made = Some(one.unwrap()),
                    other = &mut goes_on => break other.unwrap(),
                }
            };
            if last_word && made.is_none() {
                made = Some((&mut gives_up).await.unwrap());
            }
            assert_eq!(made.is_some(), last_word);
            let mut end = End::new(far, connected);
            while end.link.am_short(7, 1, &[1; 8]).is_ok() {
                sent += 1;
            }
            relay.abort();
            end
        });
        far = end.end();
        let mut seen = Seen::default();
        near.progress(64, &mut seen);
        assert!(seen.messages.is_empty() && seen.failed.is_empty());
    }
    let [one, other] = met(&connectors);
    let mut ends = [End::new(near, one), End::new(far, other)];
    for from in [0, 1] {
        send(&mut ends, from, 0..500);
        until(&mut ends, |ends| ends[1 - from].seen.messages.len() == 500);
    }
}

/// A socket whose last close waits for hours, or until the other is closed.
fn lingering() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let settings = SockRef::from(&socket);
    settings.set_send_buffer_size(1 << 16).unwrap();
    settings.set_linger(Some(Duration::from_hours(2))).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    [socket, listener.accept().unwrap().0]
}

/// A peer passes descriptors over the control socket: with what is read, and behind what ends the connection. Their last close is none of the worker's.
#[test]
fn descriptors_on_the_control_socket_end_the_connection_and_are_closed_elsewhere() {
    for unread in [false, true] {
        let mut all = ends();
        send(&mut all, 0, 0..10);
        until(&mut all, |ends| ends[1].seen.messages.len() == 10);
        let [mut near, far] = all;
        let control = far.connection.control();
        if unread {
            // No frame.
            control.send(&[9; FRAME]).unwrap();
        }
        let [passed, other] = lingering();
        let rights = [passed.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&rights)];
        let (to, parts) = (control.as_raw_fd(), [IoSlice::new(&[1])]);
        sendmsg::<()>(to, &parts, &rights, MsgFlags::empty(), None).unwrap();
        drop(passed);
        // Then its close waits no longer, and nor does the test.
        let closes = thread::spawn(move || {
            thread::sleep(Duration::from_secs(5));
            drop(other);
        });
        let start = Instant::now();
        while near.seen.failed.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "it goes on");
            near.pass();
        }
        assert_eq!(near.seen.failed[0].kind(), ErrorKind::Protocol);
        drop(near.end());
        assert!(
            start.elapsed() < Duration::from_secs(4),
            "it was closed here"
        );
        closes.join().unwrap();
    }
}

/// Whether all is acknowledged is asked with the peer's receives in mind: one of them is kept for that.
#[test]
fn flushes_take_one_receive_of_the_peer() {
    let mut ends = ends();
    for number in 0..10 {
        send(&mut ends, 0, number..number + 1);
        let start = Instant::now();
        while !ends[0].link.is_flushed() {
            assert!(start.elapsed() < Duration::from_secs(60), "not flushed");
            ends[0].pass();
        }
    }
    for end in &mut ends {
        assert!(end.seen.failed.is_empty(), "{:?}", end.seen.failed);
        assert!(end.connection.is_alive(0));
    }
    let far = &mut ends[1];
    assert_eq!(far.interface.progress(64, &mut far.seen), 11);
    assert_eq!(far.seen.messages.len(), 10);
}

/// The only rail ends by its device's word, which is heard before what had come over it is looked at.
#[test]
fn what_came_before_the_last_rail_failed_is_delivered() {
    let rooms = [(); 2].map(|()| room(DeviceChoice::Only(vec!["emu0".to_owned()])));
    let connectors = rooms.clone().map(RcConnector::new);
    let mut rooms = rooms.into_iter();
    let mut ends = met(&connectors).map(|connected| {
        let interface = RcInterface::new(rooms.next().unwrap());
        End::new(interface, connected)
    });
    send(&mut ends, 0, 0..10);
    let far = &mut ends[1];
    assert!(!far.connection.fail_rail(0, true));
    far.pass();
    assert_eq!(far.seen.messages.len(), 10);
}

/// What cannot be sent again, and of which no completion will tell, is told at once.
#[test]
fn a_refused_post_of_what_is_sent_again_ends_the_connection() {
    let mut ends = ends();
    send(&mut ends, 0, 0..10);
    until(&mut ends, |ends| ends[1].seen.messages.len() == 10);
    let [near, far] = &mut ends;
    far.connection.rails[0].queue_pair.to_error().unwrap();
    near.link.am_short(7, 10, &[10; 8]).unwrap();
    // The next rail has no room that this side knows of.
    let rail = &near.connection.rails[1];
    let head = Header {
        id: 0,
        kind: Kind::Credits,
        credits: 0,
        sequence: 0,
        header: 0,
    };
    // SAFETY: nothing was sent over it yet.
    unsafe { rail.ring.write(0, &head.encode()) };
    let piece = [rail.ring.piece(0, HEADER)];
    loop {
        let mut sends = [SendRequest::send(0, &piece, SendFlags::empty())];
        // SAFETY: that part of the ring stays as it is.
        if unsafe { rail.queue_pair.post_send(&mut sends) }.is_err() {
            break;
        }
    }
    let start = Instant::now();
    while ends[0].seen.failed.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(8), "nobody is told");
        ends.iter_mut().for_each(End::pass);
    }
    assert_eq!(ends[0].seen.failed[0].kind(), ErrorKind::Exhausted);
}

/// The peer has gone when it is to be told of a rail that failed.
#[test]
fn a_control_socket_that_is_closed_raises_no_signal() {
    let [mut near, far] = ends();
    near.pass();
    far.connection.hang_up();
    let mut pipe = SigSet::empty();
    pipe.add(Signal::SIGPIPE);
    pipe.thread_block().unwrap();
    near.connection.rails[0].queue_pair.to_error().unwrap();
    let _ = near.link.am_short(7, 1, &[]);
    let start = Instant::now();
    while near.seen.failed.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "it goes on");
        // Its end is not read before.
        near.interface.progress(64, &mut near.seen);
    }
    let error = &near.seen.failed[0];
    assert!(error.to_string().contains("socket broke"), "{error}");
    assert!(!pending(Signal::SIGPIPE));
}

/// Whether a signal that this thread blocks has come.
fn pending(signal: Signal) -> bool {
    let mut pending = *SigSet::empty().as_ref();
    // SAFETY: a set to be filled in.
    assert_eq!(unsafe { libc::sigpending(&raw mut pending) }, 0);
    // SAFETY: a set, and a signal of this system.
    unsafe { libc::sigismember(&raw const pending, signal as i32) == 1 }
}

/// Several workers sleep on one device, and who wakes first takes what it tells: the others are woken all the same.
#[test]
fn who_sleeps_is_woken_by_what_others_took_of_a_device() {
    let [mut near, mut far] = ends();
    let mut poll = mio::Poll::new().unwrap();
    let registry = Registry::new(poll.registry().try_clone().unwrap(), 0);
    far.interface.register(registry).unwrap();
    let mut events = mio::Events::with_capacity(16);
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(60), "never at rest");
        far.interface.progress(64, &mut far.seen);
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        if far.interface.arm() && events.is_empty() {
            break;
        }
        for event in &events {
            far.interface
                .ready(event.token().0, event.is_readable(), false);
        }
    }
    // What the peer may not write: the far device tells of it.
    let rail = near.connection.rails.iter().find(|rail| rail.data).unwrap();
    let piece = [rail.ring.piece(0, 1)];
    let mut sends = [SendRequest::write(0, &piece, SendFlags::SIGNALED, 0, 0)];
    // SAFETY: that part of the ring is left alone.
    unsafe { rail.queue_pair.post_send(&mut sends) }.unwrap();
    near.pass();
    // As another worker does.
    let mut rails = far.connection.rails.iter();
    let rail = rails.find(|rail| rail.data).unwrap();
    rail.reservation.queues.device.take_events();
    poll.poll(&mut events, Some(Duration::from_secs(10)))
        .unwrap();
    assert!(!events.is_empty(), "it sleeps");
    assert!(!far.interface.arm());
}
