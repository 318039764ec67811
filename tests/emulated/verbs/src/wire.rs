//! The wire between processes: those that name one folder (`EMULATED_VERBS_FOLDER`) have devices on one network.
//!
//! ```text
//! FOLDER/SLOT.lock     locked by the process that has the slot, as long as it lives; never removed
//! FOLDER/SLOT.socket   where it takes connections; what a killed one leaves refuses them
//! ```
//! The slot is the upper byte of its queue pairs' numbers. One thread does all that is on the wire, from the first open device to the last, and sleeps
//! when there is nothing to do. A process asks by a connection of its own to the other's socket; answers come back by it. Who dies closes all its
//! connections, and the kernel tells: requests that were under way end then.
//!
//! The lock on the state is held for what is computed, and for sends and receives that do not block; never for anything that waits.
//!
//! A forked child has none of it: its copies of the descriptors are closed, as a peer would otherwise not see that the parent has died.
//!
//! # Safety
//! Calls are given descriptors of this thread's, and memory that lives through them.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io::{self, Read},
    mem::ManuallyDrop,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::{
            ffi::OsStrExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    ptr,
    sync::{
        Once,
        atomic::{AtomicI32, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    frame::Frame,
    world::{JOURNAL, WORLD, ring, take},
};

/// Whom something is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum To {
    /// The process in this slot, by a connection of this side's.
    Process(u32),
    /// Whoever asked by this connection.
    Connection(u64),
}

/// What the thread is told.
pub(crate) struct Wire {
    pub(crate) slot: u32,
    /// The last number of a queue pair that was given.
    pub(crate) next: u16,
    pub(crate) outbox: VecDeque<(To, Vec<u8>)>,
    /// The process that has the thread: a child of it has not.
    process: u32,
    wake: RawFd,
    stop: bool,
    /// Contexts that are open.
    users: usize,
    thread: ManuallyDrop<JoinHandle<()>>,
}

impl Wire {
    pub(crate) fn post(&mut self, to: To, frame: Vec<u8>) {
        if self.is_here() && !self.stop {
            self.outbox.push_back((to, frame));
            ring(self.wake);
        }
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

/// Who opens and who closes, one after the other.
static DOOR: Mutex<()> = Mutex::new(());

/// Joins the network of the folder that is named, for one context more. Without one there is nothing to join.
///
/// # Errors
/// From the folder and the socket in it; all slots are taken.
pub(crate) fn enter() -> io::Result<()> {
    let Some(folder) = std::env::var_os("EMULATED_VERBS_FOLDER") else {
        return Ok(());
    };
    let _door = DOOR.lock();
    if let Some(wire) = &mut WORLD.lock().wire
        && wire.is_here()
    {
        wire.users += 1;
        return Ok(());
    }
    static CHILDREN: Once = Once::new();
    // SAFETY: the function closes descriptors, which a child may do.
    CHILDREN.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(close_in_child));
    });
    let station = Station::new(Path::new(&folder))?;
    let (slot, wake) = (station.slot, station.wake.0.as_raw_fd());
    // A process that has the slot of one that died has other numbers than it had.
    let seed = std::process::id().wrapping_mul(0x9e37_79b1) ^ since_the_epoch().subsec_nanos();
    let mut world = WORLD.lock();
    let thread = without_signals(|| {
        std::thread::Builder::new()
            .name("emulated wire".to_owned())
            .spawn(move || station.run())
    })?;
    // What a parent had is not this process's.
    world.hungry.clear();
    world.wire = Some(Wire {
        slot,
        next: (seed >> 16) as u16,
        outbox: VecDeque::new(),
        process: std::process::id(),
        wake,
        stop: false,
        users: 1,
        thread: ManuallyDrop::new(thread),
    });
    Ok(())
}

/// A context was closed. With the last one the thread ends.
pub(crate) fn leave() {
    let _door = DOOR.lock();
    let mut world = WORLD.lock();
    let Some(wire) = world.wire.as_mut().filter(|wire| wire.is_here()) else {
        return;
    };
    wire.users -= 1;
    if wire.users > 0 {
        return;
    }
    wire.stop = true;
    ring(wire.wake);
    // SAFETY: nobody takes it again, as the wire is gone when the door opens.
    let thread = unsafe { ManuallyDrop::take(&mut wire.thread) };
    drop(world);
    if thread.join().is_err() {
        JOURNAL.misuse("the wire's thread panicked".to_owned());
    }
    let mut world = WORLD.lock();
    world.wire = None;
    world.hungry.clear();
}

fn since_the_epoch() -> Duration {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Starts a thread that takes none of the program's signals.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: sets that are filled or written by the calls, which change this thread's mask alone.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        started
    }
}

/// Descriptors that a child is not to keep.
static OURS: [AtomicI32; 1024] = [const { AtomicI32::new(-1) }; 1024];

extern "C" fn close_in_child() {
    for one in &OURS {
        let fd = one.swap(-1, Relaxed);
        if fd >= 0 {
            // SAFETY: the child's copy of a descriptor that only the wire uses, which the child does not.
            unsafe { libc::close(fd) };
        }
    }
}

/// A descriptor that a child does not keep.
struct Ours<T: AsRawFd>(T);

impl<T: AsRawFd> Ours<T> {
    fn new(fd: T) -> io::Result<Self> {
        let raw = fd.as_raw_fd();
        let free = |one: &&AtomicI32| one.compare_exchange(-1, raw, Relaxed, Relaxed).is_ok();
        match OURS.iter().find(free) {
            Some(_) => Ok(Self(fd)),
            None => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        }
    }
}

impl<T: AsRawFd> Drop for Ours<T> {
    fn drop(&mut self) {
        let raw = self.0.as_raw_fd();
        let this = |one: &&AtomicI32| one.compare_exchange(raw, -1, Relaxed, Relaxed).is_ok();
        let _ = OURS.iter().find(this);
    }
}

/// One end of a connection.
struct Connection {
    stream: Ours<UnixStream>,
    input: Vec<u8>,
    output: VecDeque<Vec<u8>>,
    /// How much of the first of them went.
    sent: usize,
}

impl Connection {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Ours::new(stream)?,
            input: Vec::new(),
            output: VecDeque::new(),
            sent: 0,
        })
    }

    /// Sends what goes without waiting.
    ///
    /// # Errors
    /// The other end is gone.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(frame) = self.output.front() {
            let rest = &frame[self.sent..];
            // SAFETY: bytes of the frame; a peer that is gone is an error and no signal.
            let sent = unsafe {
                libc::send(
                    self.stream.0.as_raw_fd(),
                    rest.as_ptr().cast(),
                    rest.len(),
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                )
            };
            match usize::try_from(sent) {
                Ok(sent) if sent == rest.len() => {
                    self.output.pop_front();
                    self.sent = 0;
                }
                Ok(sent) => self.sent += sent,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => break,
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Reads what is there; whether more may come.
    fn fill(&mut self) -> bool {
        let mut some = [0; 1 << 16];
        // So much at a time, that others have their turn.
        for _ in 0..64 {
            match (&self.stream.0).read(&mut some) {
                Ok(0) => return false,
                Ok(count) => self.input.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// The frames that are all there, and whether what follows may be one.
    fn frames(&mut self) -> (Vec<Frame>, bool) {
        let (mut frames, mut at) = (Vec::new(), 0);
        let fine = loop {
            match Frame::decode(&self.input[at..]) {
                Ok(Some((frame, length))) => {
                    frames.push(frame);
                    at += length;
                }
                Ok(None) => break true,
                Err(()) => break false,
            }
        };
        self.input.drain(..at);
        (frames, fine)
    }
}

/// The thread's own.
struct Station {
    folder: PathBuf,
    slot: u32,
    wake: Ours<OwnedFd>,
    listener: Ours<UnixListener>,
    /// Connections of this side's, by slot, and those of others.
    asked: BTreeMap<u32, Connection>,
    served: BTreeMap<u64, Connection>,
    next: u64,
    /// Held as long as the slot is this process's; let go last.
    _lock: Ours<File>,
}

fn socket(folder: &Path, slot: u32) -> PathBuf {
    folder.join(format!("{slot}.socket"))
}

/// Connects without waiting: a process that is stopped, and has no room for one more that asks, is not reached.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers.
    let stream = match unsafe { libc::socket(libc::AF_UNIX, flags, 0) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: just made, and nobody else has it.
        fd => unsafe { UnixStream::from_raw_fd(fd) },
    };
    // SAFETY: numbers, for which zeros are values.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // The last one stays zero.
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, byte) in address.sun_path.iter_mut().zip(bytes) {
        *to = *byte as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: an address of that length.
    match unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Locks the first slot that nobody has.
fn lock(folder: &Path) -> io::Result<(u32, File)> {
    for slot in 1..=255 {
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        let file = options.open(folder.join(format!("{slot}.lock")))?;
        // SAFETY: a descriptor of ours.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok((slot, file));
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

impl Station {
    fn new(folder: &Path) -> io::Result<Self> {
        let (slot, file) = lock(folder)?;
        let path = socket(folder, slot);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        // SAFETY: takes numbers.
        let wake = match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: just made, and nobody else has it.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        Ok(Self {
            folder: folder.to_owned(),
            slot,
            wake: Ours::new(wake)?,
            listener: Ours::new(listener)?,
            asked: BTreeMap::new(),
            served: BTreeMap::new(),
            next: 0,
            _lock: Ours::new(file)?,
        })
    }

    fn run(mut self) {
        loop {
            let (outbox, stop) = match &mut WORLD.lock().wire {
                Some(wire) => (std::mem::take(&mut wire.outbox), wire.stop),
                // It is being set, by who holds the lock until then.
                None => (VecDeque::new(), false),
            };
            for (to, frame) in outbox {
                self.queue(to, frame);
            }
            self.flush();
            if stop {
                break;
            }
            self.turn(-1);
        }
        // What others still wait for, unless they take nothing.
        let end = Instant::now() + Duration::from_secs(1);
        while self.is_behind() && Instant::now() < end {
            self.turn(100);
            self.flush();
        }
        let _ = fs::remove_file(socket(&self.folder, self.slot));
    }

    fn is_behind(&self) -> bool {
        let mut all = self.asked.values().chain(self.served.values());
        all.any(|connection| !connection.output.is_empty())
    }

    fn queue(&mut self, to: To, frame: Vec<u8>) {
        match to {
            To::Connection(id) => {
                if let Some(connection) = self.served.get_mut(&id) {
                    connection.output.push_back(frame);
                }
            }
            To::Process(slot) => {
                if !self.asked.contains_key(&slot) {
                    let stream = connect(&socket(&self.folder, slot));
                    match stream.and_then(Connection::new) {
                        Ok(connection) => drop(self.asked.insert(slot, connection)),
                        Err(_) => return WORLD.lock().unreachable(slot),
                    }
                }
                if let Some(connection) = self.asked.get_mut(&slot) {
                    connection.output.push_back(frame);
                }
            }
        }
    }

    /// Sends what goes, and lets go of who is gone.
    fn flush(&mut self) {
        let gone: Vec<u32> = self
            .asked
            .iter_mut()
            .filter_map(|(slot, connection)| connection.flush().is_err().then_some(*slot))
            .collect();
        for slot in gone {
            // What it had answered before comes first.
            if self.hear(slot) {
                self.lose(slot);
            }
        }
        let gone: Vec<u64> = self
            .served
            .iter_mut()
            .filter_map(|(id, connection)| connection.flush().is_err().then_some(*id))
            .collect();
        for id in gone {
            self.hang_up(id);
        }
    }

    fn lose(&mut self, slot: u32) {
        self.asked.remove(&slot);
        WORLD.lock().unreachable(slot);
    }

    fn hang_up(&mut self, id: u64) {
        self.served.remove(&id);
        WORLD.lock().hung_up(id);
    }

    /// Waits until something can be done, and does it.
    fn turn(&mut self, limit: i32) {
        let entry = |fd: RawFd, out: bool| libc::pollfd {
            fd,
            events: libc::POLLIN | if out { libc::POLLOUT } else { 0 },
            revents: 0,
        };
        let of = |connection: &Connection| {
            entry(
                connection.stream.0.as_raw_fd(),
                !connection.output.is_empty(),
            )
        };
        let slots: Vec<u32> = self.asked.keys().copied().collect();
        let ids: Vec<u64> = self.served.keys().copied().collect();
        let mut all = vec![
            entry(self.wake.0.as_raw_fd(), false),
            entry(self.listener.0.as_raw_fd(), false),
        ];
        all.extend(self.asked.values().map(of));
        all.extend(self.served.values().map(of));
        // SAFETY: an array of so many entries.
        let ready = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, limit) };
        if ready <= 0 {
            return;
        }
        if all[0].revents != 0 {
            take(self.wake.0.as_raw_fd());
        }
        if all[1].revents != 0 {
            self.accept();
        }
        let heard = libc::POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        let (asked, served) = all[2..].split_at(slots.len());
        for (slot, _) in slots
            .iter()
            .zip(asked)
            .filter(|(_, entry)| entry.revents & heard != 0)
        {
            self.hear(*slot);
        }
        for (id, _) in ids
            .iter()
            .zip(served)
            .filter(|(_, entry)| entry.revents & heard != 0)
        {
            self.serve(*id);
        }
    }

    fn accept(&mut self) {
        // One that cannot be taken is closed, which tells whoever asks.
        while let Ok((stream, _)) = self.listener.0.accept() {
            if let Ok(connection) = Connection::new(stream) {
                self.next += 1;
                self.served.insert(self.next, connection);
            }
        }
    }

    /// Takes the answers of a process; whether it is still there.
    fn hear(&mut self, slot: u32) -> bool {
        let Some(connection) = self.asked.get_mut(&slot) else {
            return false;
        };
        let open = connection.fill();
        let (frames, mut fine) = connection.frames();
        let mut world = WORLD.lock();
        for frame in frames {
            fine &= match frame {
                Frame::Answer {
                    number,
                    sequence,
                    answer,
                    data,
                } => world
                    .answered(slot, number, sequence, answer, &data)
                    .is_ok(),
                Frame::Ready { number, sequence } => {
                    world.ready(slot, number, sequence);
                    true
                }
                Frame::Request { .. } => false,
            };
        }
        drop(world);
        if !(open && fine) {
            self.lose(slot);
        }
        open && fine
    }

    /// Carries out what a process asks for.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.served.get_mut(&id) else {
            return;
        };
        let open = connection.fill();
        let (frames, mut fine) = connection.frames();
        for frame in frames {
            let Frame::Request {
                sequence,
                request,
                data,
            } = frame
            else {
                fine = false;
                break;
            };
            let mut world = WORLD.lock();
            if let Some(answer) = world.serve(id, sequence, &request, &data) {
                connection.output.push_back(answer.encode());
            }
            // Before anybody can see that it was done: who does, and dies, has answered.
            fine &= connection.flush().is_ok();
            drop(world);
        }
        if !(open && fine) {
            self.hang_up(id);
        }
    }
}
