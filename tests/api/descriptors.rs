//! Descriptors that a peer on this host passes: of a wrong kind, too many, none, and where none belong. Each is refused at once, closed, and waited for
//! by nobody, whatever its last close waits for; who is honest connects as before.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice, Write as _},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::{fs::OpenOptionsExt, net::SocketAddr},
    },
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, SealFlag, fcntl},
    sys::{
        epoll::{Epoll, EpollCreateFlags},
        eventfd::EventFd,
        memfd::{MFdFlags, memfd_create},
        socket::{ControlMessage, MsgFlags, sendmsg},
        timerfd::{ClockId, TimerFd, TimerFlags},
    },
    unistd::{ftruncate, pipe},
};
use tokio::net::{UnixListener, UnixStream};
use wharf::{Context, ErrorKind, Worker, WorkerAddress};

use crate::{
    fixture::run,
    stranger::{
        Key, Stranger, hear, hear_hello, hear_introduction, led_to, unix_part, until_the_end,
    },
    support::{Child, LIMIT, child, open_fds, this_test},
};

/// Bytes of the segment of a connection, and how it is offered.
const SEGMENT: i64 = 0x4a_b000;
const LAYOUT: u32 = 11;

/// Of a frame of the set-up: a note.
const NOTE: u32 = 1 << 31;

/// The first byte of a frame of the set-up.
const GO_ON: u8 = 0;
const REFUSED: u8 = 1;

fn memory(length: i64, seals: SealFlag, more: MFdFlags) -> nix::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | more;
    let memory = memfd_create("descriptors", flags)?;
    ftruncate(&memory, length)?;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(memory)
}

/// Seals of memory as it should be.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

fn sealed(length: i64) -> OwnedFd {
    memory(length, SEALS, MFdFlags::empty()).expect("sealed memory")
}

fn timer() -> OwnedFd {
    let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags);
    timer.expect("a timer").into()
}

fn copy(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().expect("a duplicate")
}

/// Neither memory to share nor timers.
fn strange() -> Vec<(&'static str, OwnedFd)> {
    let open = |options: &mut OpenOptions, path| options.open(path).expect("it is there").into();
    let (reads, writes) = pipe().expect("a pipe");
    let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let by_path = OFlag::O_PATH.bits();
    vec![
        ("the reading end of a pipe", reads),
        ("the writing end of a pipe", writes),
        ("a socket", socket.into()),
        ("a listener", listener.into()),
        ("a directory", open(OpenOptions::new().read(true), "/")),
        (
            "/dev/null",
            open(OpenOptions::new().write(true), "/dev/null"),
        ),
        (
            "/dev/zero",
            open(OpenOptions::new().read(true).write(true), "/dev/zero"),
        ),
        (
            "a path",
            open(
                OpenOptions::new().read(true).custom_flags(by_path),
                "/proc/self/exe",
            ),
        ),
        ("a file", tempfile::tempfile().expect("a file").into()),
        ("an eventfd", EventFd::new().expect("an eventfd").into()),
        (
            "an epoll",
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
                .expect("an epoll")
                .0,
        ),
    ]
}

/// Memory that is not as it should be.
fn wrong_memory() -> Vec<(&'static str, OwnedFd)> {
    let with = |seals| memory(SEGMENT, seals, MFdFlags::empty()).expect("memory");
    let (shrink, grow) = (SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW);
    let whole = sealed(SEGMENT);
    let again = format!("/proc/self/fd/{}", whole.as_raw_fd());
    let mut all = vec![
        ("memory without seals", with(SealFlag::empty())),
        ("memory that may grow", with(shrink)),
        ("memory that may shrink", with(grow)),
        (
            "memory that nobody writes",
            with(shrink | grow | SealFlag::F_SEAL_WRITE),
        ),
        (
            "memory that is read only",
            File::open(again).expect("the same").into(),
        ),
        ("no bytes", sealed(0)),
        ("a page", sealed(4096)),
        ("a page less", sealed(SEGMENT - 4096)),
        ("a page more", sealed(SEGMENT + 4096)),
        ("a sparse terabyte", sealed(1 << 40)),
    ];
    let huge = MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
    match memory(6 << 20, SEALS, huge) {
        Ok(huge) => all.push(("huge pages", huge)),
        Err(error) => eprintln!("without huge pages that are kept ready: {error}"),
    }
    all
}

/// Sockets that wait at their last close until what was sent is read, for hours.
#[derive(Default)]
struct Lingering {
    /// Nobody reads there. When it is closed, the wait is over.
    others: Vec<std::net::TcpStream>,
}

impl Lingering {
    fn one(&mut self) -> OwnedFd {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        // More than this goes no further than the sender's own.
        let settings = socket2::SockRef::from(&listener);
        settings.set_recv_buffer_size(4096).expect("set");
        let address = listener.local_addr().expect("an address");
        let mut socket = std::net::TcpStream::connect(address).expect("connected");
        let settings = socket2::SockRef::from(&socket);
        settings.set_send_buffer_size(1 << 16).expect("set");
        let hours = Some(Duration::from_secs(10_000));
        settings.set_linger(hours).expect("set");
        self.others.push(listener.accept().expect("accepted").0);
        socket.set_nonblocking(true).expect("set");
        while socket.write(&[0; 1 << 16]).is_ok() {}
        socket.into()
    }

    /// Whether it is as said on this system.
    fn is_so() -> bool {
        let mut all = Self::default();
        let (socket, (told, heard)) = (all.one(), mpsc::channel());
        thread::spawn(move || {
            drop(socket);
            let _ = told.send(());
        });
        let waits = heard.recv_timeout(Duration::from_millis(300)).is_err();
        drop(all);
        if waits {
            heard
                .recv_timeout(LIMIT)
                .expect("nobody is there to read it");
        }
        waits
    }
}

/// Says something, with descriptors that are this side's no longer.
fn pass(stream: &UnixStream, bytes: &[u8], fds: Vec<OwnedFd>) {
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let with = if raw.is_empty() { &[][..] } else { &rights };
    let (to, parts) = (stream.as_fd().as_raw_fd(), [IoSlice::new(bytes)]);
    let sent = sendmsg::<()>(to, &parts, with, MsgFlags::MSG_NOSIGNAL, None);
    match sent {
        Ok(count) => assert_eq!(count, bytes.len(), "a socket has room for so little"),
        // The worker has hung up. Where nobody else has them, this would be their last close.
        Err(_) => drop(thread::spawn(move || drop(fds))),
    }
}

fn framed(flag: u32, message: &[u8]) -> Vec<u8> {
    let length = message.len() as u32 | flag;
    [&length.to_le_bytes()[..], message].concat()
}

/// Where in what a peer says it does something else than it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Hello,
    Proof,
    Introduction,
    Acceptance,
    Note,
    /// The frame with descriptors of one that offers a segment, and of one that answers.
    Offer,
    Answer,
    /// In its place.
    Refusal,
    NoStatus,
    Strange,
    /// The last one of one that offers.
    Verdict,
    /// Half of a message, and then it hangs up.
    Torn,
    /// Behind a message that ends the connection.
    Unread,
}

/// What goes with one of several messages.
struct With(At, Option<Vec<OwnedFd>>);

impl With {
    /// Says something, and what goes with it. Whether this was it.
    fn say(&mut self, at: At, stream: &UnixStream, message: &[u8]) -> bool {
        let fds = match self.0 == at {
            true => self.1.take().unwrap_or_default(),
            false => Vec::new(),
        };
        pass(stream, &framed(0, message), fds);
        self.0 == at
    }

    /// Says something else where that is due.
    fn interrupts(&mut self, stream: &UnixStream) {
        let fds = self.1.take().unwrap_or_default();
        match self.0 {
            At::Note => pass(stream, &framed(NOTE, &[0]), fds),
            At::Refusal => pass(stream, &framed(0, &[REFUSED, b'n', b'o']), fds),
            At::NoStatus => pass(stream, &framed(0, &[9]), fds),
            At::Strange => pass(stream, &framed(0, &[GO_ON, 9, 9]), fds),
            At::Torn => pass(stream, &framed(0, &[GO_ON; 50])[..20], fds),
            _ => {
                pass(stream, &framed(0, &[9]), Vec::new());
                pass(stream, &framed(0, &[9]), fds);
            }
        }
    }
}

/// Frames that stand in the place of one with descriptors.
const INTERRUPTIONS: [At; 6] = [
    At::Note,
    At::Refusal,
    At::NoStatus,
    At::Strange,
    At::Torn,
    At::Unread,
];

/// What one that dials may say with descriptors.
const BY_CLIENT: [At; 4] = [At::Hello, At::Introduction, At::Proof, At::Answer];
/// And one that is dialled.
const BY_SERVER: [At; 5] = [At::Hello, At::Proof, At::Acceptance, At::Offer, At::Verdict];

fn open(address: &WorkerAddress) -> UnixStream {
    let name = SocketAddr::from_abstract_name(unix_part(address).0).expect("a name");
    let stream = std::os::unix::net::UnixStream::connect_addr(&name).expect("it listens");
    stream.set_nonblocking(true).expect("set");
    UnixStream::from_std(stream).expect("within a runtime")
}

/// Dials a worker, and passes these descriptors there. The worker hangs up.
async fn dial(address: &WorkerAddress, at: At, fds: Vec<OwnedFd>) {
    let mut stream = open(address);
    begin(&mut stream, &mut With(at, Some(fds))).await;
    if at != At::Torn {
        until_the_end(&mut stream).await;
    }
}

/// The handshake of one that dials, up to the message that comes with descriptors. Whether that was the last, which makes the connection.
async fn begin(stream: &mut UnixStream, with: &mut With) {
    let own = Key::new([0x42; 32]);
    let stranger = Stranger::honest("unix", &own);
    if with.say(At::Hello, stream, &stranger.client_hello()) {
        return;
    }
    let server = hear_hello(stream).await;
    let [introduction, proof] = stranger.introduction(&server);
    if with.say(At::Introduction, stream, &introduction) || with.say(At::Proof, stream, &proof) {
        return;
    }
    let verdict = hear(stream).await;
    assert_eq!(verdict[6], b'A', "{:?}", String::from_utf8_lossy(&verdict));
    let offer = hear(stream).await;
    assert_eq!(offer[0], GO_ON, "{offer:?}");
    if INTERRUPTIONS.contains(&with.0) {
        return with.interrupts(stream);
    }
    // And no barriers.
    with.say(At::Answer, stream, &[GO_ON, 0]);
}

/// A connection on which records of shared memory may come.
async fn linked(address: &WorkerAddress) -> UnixStream {
    let mut stream = open(address);
    begin(&mut stream, &mut With(At::Answer, Some(vec![timer()]))).await;
    assert_eq!(hear(&mut stream).await, [GO_ON], "it is made");
    stream
}

/// Is dialled by a worker, and passes these descriptors there. The worker hangs up.
async fn answer(listener: &UnixListener, own: &Key, at: At, fds: Vec<OwnedFd>) {
    let (mut stream, _) = listener.accept().await.expect("it dials");
    let (stream, mut with) = (&mut stream, With(at, Some(fds)));
    let stranger = Stranger::honest("unix", own);
    let hello = hear(stream).await;
    let ([first, proof], both) = stranger.server_hello(&hello);
    if with.say(At::Hello, stream, &first) || with.say(At::Proof, stream, &proof) {
        return until_the_end(stream).await;
    }
    let introduction = hear_introduction(stream).await;
    let yes = stranger.acceptance_over(both, &introduction, b"\x03shm", &[]);
    if with.say(At::Acceptance, stream, &yes) {
        return until_the_end(stream).await;
    }
    if INTERRUPTIONS.contains(&at) {
        with.interrupts(stream);
        if at != At::Torn {
            until_the_end(stream).await;
        }
        return;
    }
    let mut offer = vec![GO_ON];
    offer.extend_from_slice(b"wharfshm");
    offer.extend_from_slice(&LAYOUT.to_le_bytes());
    offer.extend_from_slice(&(SEGMENT as u32).to_le_bytes());
    offer.push(0);
    if at == At::Verdict {
        pass(stream, &framed(0, &offer), vec![segment(), timer()]);
        assert_eq!(hear(stream).await[0], GO_ON, "it takes what is right");
        with.say(At::Verdict, stream, &[GO_ON]);
    } else {
        with.say(At::Offer, stream, &offer);
    }
    until_the_end(stream).await;
}

/// Memory as it is offered.
fn segment() -> OwnedFd {
    sealed(SEGMENT)
}

/// All descriptors of which one timer is to be.
fn wrong_answers() -> Vec<(&'static str, Vec<OwnedFd>)> {
    let one = timer();
    let mut all = vec![
        ("none", vec![]),
        ("two timers", vec![timer(), timer()]),
        ("a timer twice", vec![copy(&one), copy(&one)]),
        ("a timer and memory", vec![timer(), segment()]),
        ("eight", (0..8).map(|_| timer()).collect()),
        ("nine", (0..9).map(|_| copy(&one)).collect()),
        ("as many as can go", (0..253).map(|_| copy(&one)).collect()),
    ];
    let kinds = strange().into_iter().chain(wrong_memory());
    all.extend(kinds.map(|(name, fd)| (name, vec![fd])));
    all
}

/// And of which memory and a timer are to be, in this order.
fn wrong_offers() -> Vec<(&'static str, Vec<OwnedFd>)> {
    let (whole, one) = (segment(), timer());
    let mut all = vec![
        ("none", vec![]),
        ("memory alone", vec![segment()]),
        ("a timer alone", vec![timer()]),
        ("the other way round", vec![timer(), segment()]),
        ("the same memory twice", vec![copy(&whole), copy(&whole)]),
        ("the same timer twice", vec![copy(&one), copy(&one)]),
        ("one too many", vec![segment(), timer(), timer()]),
        ("nine", (0..9).map(|_| copy(&whole)).collect()),
        ("as many as can go", (0..253).map(|_| copy(&one)).collect()),
    ];
    let kinds = strange().into_iter().chain(wrong_memory());
    all.extend(kinds.map(|(name, fd)| (name, vec![fd, timer()])));
    let bells = strange().into_iter();
    all.extend(bells.map(|(name, fd)| (name, vec![copy(&whole), fd])));
    all
}

/// Records of shared memory that end a connection: what is said of its length, and what goes with it.
fn wrong_records() -> Vec<(&'static str, u64, Vec<OwnedFd>)> {
    let (whole, right) = (sealed(4096), 4096);
    let mut all = vec![
        ("none", right, vec![]),
        ("twice the same", right, vec![copy(&whole), copy(&whole)]),
        ("nine", right, (0..9).map(|_| copy(&whole)).collect()),
        (
            "as many as can go",
            right,
            (0..253).map(|_| copy(&whole)).collect(),
        ),
        ("a timer", right, vec![timer()]),
        ("no length", 0, vec![copy(&whole)]),
        ("another length", right + 1, vec![copy(&whole)]),
        ("an impossible length", u64::MAX, vec![copy(&whole)]),
        (
            "a page that is to be a terabyte",
            1 << 40,
            vec![copy(&whole)],
        ),
    ];
    // Who only reads takes less, so of memory not all.
    let loose = [
        "memory without seals",
        "memory that may grow",
        "memory that may shrink",
    ];
    let memory = wrong_memory().into_iter();
    let memory = memory.filter(|(name, _)| loose.contains(name));
    all.extend(memory.map(|(name, fd)| (name, SEGMENT as u64, vec![fd])));
    let kinds = strange().into_iter();
    all.extend(
        kinds
            .flat_map(|(name, fd)| [right, u64::MAX].map(|length| (name, length, vec![copy(&fd)]))),
    );
    all
}

fn record(length: u64) -> Vec<u8> {
    [77_u64.to_le_bytes(), length.to_le_bytes()].concat()
}

/// The worker that is tried, others, and who keeps to nothing.
struct Bed {
    here: Worker,
    /// Dials it, and is dialled by it.
    from: Worker,
    to: Worker,
    /// Of `here`.
    address: WorkerAddress,
    listener: UnixListener,
    own: Key,
    /// Leads to `listener`.
    trap: WorkerAddress,
}

impl Bed {
    fn new() -> Self {
        // What waits does so for longer than the test.
        let long = Duration::from_secs(600);
        let builder = Context::builder().transports("shm").expect("of this build");
        let builder = builder.handshake_timeout(long).connect_timeout(long);
        let context = builder.build().expect("a context");
        let new = || Worker::new(&context).expect("a worker");
        let (here, from, to) = (new(), new(), new());
        let address = here.address().expect("an address");
        let name = format!("wharf-test-descriptors-{}", std::process::id()).into_bytes();
        let place = SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = std::os::unix::net::UnixListener::bind_addr(&place).expect("it is free");
        listener.set_nonblocking(true).expect("set");
        let own = Key::new([0x43; 32]);
        Self {
            trap: led_to(&address, &own, &name),
            here,
            from,
            to,
            address,
            listener: UnixListener::from_std(listener).expect("within a runtime"),
            own,
        }
    }

    /// Who is honest is let in, by either.
    async fn others_go_on(&self) {
        let to = self.to.address().expect("an address");
        for (from, to, address) in [
            (&self.from, &self.here, &self.address),
            (&self.here, &self.to, &to),
        ] {
            let endpoint = from.connect(address).await.expect("an honest connection");
            endpoint.tag_send(1, vec![5; 8]).await.expect("sent");
            let got = to.tag_recv(1, vec![0; 8]).await;
            assert_eq!(got.expect("a message").buffer, [5; 8]);
            endpoint.close().await.expect("in order");
        }
    }

    /// The worker is dialled by who passes these.
    async fn is_dialled(&self, at: At, what: &str, fds: Vec<OwnedFd>) {
        let start = Instant::now();
        dial(&self.address, at, fds).await;
        shown(at, what, start);
    }

    /// The worker dials who passes these.
    async fn dials(&self, at: At, what: &str, fds: Vec<OwnedFd>) {
        let start = Instant::now();
        let peer = answer(&self.listener, &self.own, at, fds);
        let (result, ()) = tokio::join!(self.here.connect(&self.trap), peer);
        match result {
            Ok(_) => panic!("connected to who passes {what} at {at:?}"),
            Err(error) => assert_ne!(error.kind(), ErrorKind::DeadlineExceeded, "{what}: {error}"),
        }
        shown(at, what, start);
    }

    /// The worker is told of shared memory, on a connection that was made.
    async fn is_lent(&self, what: &str, bytes: &[u8], fds: Vec<OwnedFd>, then: Vec<OwnedFd>) {
        let mut stream = linked(&self.address).await;
        pass(&stream, bytes, fds);
        if !then.is_empty() {
            pass(&stream, &record(4096), then);
        }
        until_the_end(&mut stream).await;
        eprintln!("  {what}");
    }
}

/// Shown where the test fails.
fn shown(at: At, what: &str, start: Instant) {
    eprintln!("  {at:?}: {what}, {:?}", start.elapsed());
}

/// Descriptors of this process when nothing more is closed: what was refused ends on threads of its own.
async fn at_rest(wanted: Option<usize>) -> usize {
    let start = Instant::now();
    loop {
        let open =
            crate::support::at_rest("descriptors", Duration::from_millis(250), open_fds).await;
        if wanted.is_none_or(|wanted| open <= wanted) || start.elapsed() > LIMIT / 4 {
            return open;
        }
    }
}

fn targets() -> Vec<io::Result<std::path::PathBuf>> {
    let all = std::fs::read_dir("/proc/self/fd").expect("a mounted /proc");
    all.flatten()
        .map(|fd| std::fs::read_link(fd.path()))
        .collect()
}

#[test]
fn of_any_kind_are_refused_and_closed() {
    if child("alone").is_none() {
        // Others' descriptors would be counted as well.
        return Child::start(this_test!(), "alone", &[]).finish();
    }
    run(async {
        let bed = Bed::new();
        bed.others_go_on().await;
        let before = at_rest(None).await;

        for (what, fds) in wrong_answers() {
            bed.is_dialled(At::Answer, what, fds).await;
        }
        bed.others_go_on().await;
        for (what, fds) in wrong_offers() {
            bed.dials(At::Offer, what, fds).await;
        }
        bed.others_go_on().await;
        for (what, length, fds) in wrong_records() {
            bed.is_lent(what, &record(length), fds, vec![]).await;
        }
        bed.is_lent("half a record", &[0; 7], vec![sealed(4096)], vec![])
            .await;
        bed.others_go_on().await;

        // Where none belong.
        for at in BY_CLIENT.into_iter().filter(|at| *at != At::Answer) {
            bed.is_dialled(at, "a timer", vec![timer()]).await;
        }
        for at in BY_SERVER.into_iter().filter(|at| *at != At::Offer) {
            bed.dials(at, "a timer", vec![timer()]).await;
        }
        for at in INTERRUPTIONS {
            bed.is_dialled(at, "a timer", vec![timer()]).await;
            bed.dials(at, "a timer", vec![timer()]).await;
        }
        bed.others_go_on().await;

        if Lingering::is_so() {
            let mut lingering = Lingering::default();
            // Were it closed by this thread, that would hang.
            for at in BY_CLIENT.into_iter().chain(INTERRUPTIONS) {
                let one = lingering.one();
                bed.is_dialled(at, "waits", vec![one]).await;
            }
            let two = vec![timer(), lingering.one()];
            bed.is_dialled(At::Answer, "a timer, and one that waits", two)
                .await;
            for at in BY_SERVER.into_iter().chain(INTERRUPTIONS) {
                let one = lingering.one();
                bed.dials(at, "waits", vec![one]).await;
            }
            let pair = vec![lingering.one(), timer()];
            bed.dials(At::Offer, "waits, and a timer", pair).await;
            let pair = vec![segment(), lingering.one()];
            bed.dials(At::Offer, "memory, and one that waits", pair)
                .await;
            let mut many: Vec<_> = (0..252).map(|_| timer()).collect();
            many.push(lingering.one());
            bed.is_dialled(At::Answer, "wait, as many as can go", many)
                .await;
            for length in [0, 4096, 1 << 40, u64::MAX] {
                let one = lingering.one();
                bed.is_lent("waits", &record(length), vec![one], vec![])
                    .await;
            }
            let (one, half) = (lingering.one(), [0; 7]);
            bed.is_lent(
                "half a record, with one that waits",
                &half,
                vec![one],
                vec![],
            )
            .await;
            let then = vec![lingering.one()];
            bed.is_lent("behind a record of nothing", &record(4096), vec![], then)
                .await;
            bed.others_go_on().await;
            assert!(open_fds() > before, "nothing waits to be closed");
        } else {
            eprintln!("without sockets that wait when they are closed: this system has none");
        }

        let after = at_rest(Some(before)).await;
        assert!(
            after <= before,
            "{before} descriptors, then {after}: {:?}",
            targets()
        );
    });
}
