//! The thread that does all that is on the wire.
//!
//! # Safety
//! Calls are given descriptors of this side's, and memory that lives through them.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    children::Ours,
    connection::{Connection, connect},
    frame::Frame,
    wire::To,
    world::{WORLD, take},
};

/// What it has.
pub(crate) struct Station {
    folder: PathBuf,
    pub(crate) slot: u32,
    pub(crate) wake: Ours<OwnedFd>,
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

/// So many milliseconds, and no fewer.
fn until(moment: Instant) -> i32 {
    let rest = moment.saturating_duration_since(Instant::now());
    i32::try_from(rest.as_millis()).map_or(i32::MAX, |rest| rest.saturating_add(1))
}

impl Station {
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
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

    pub(crate) fn run(mut self) {
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
            let next = WORLD.lock().try_again();
            self.turn(next.map_or(-1, until));
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
