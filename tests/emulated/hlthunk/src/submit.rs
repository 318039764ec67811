//! Submissions: what is refused at once, the ring of ends that the kernel remembers, waits.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::SeqCst, mpsc},
    time::{Duration, Instant},
};

use crate::{
    abi::{ABORTED, BUSY, COMPLETED, Chip, Chunk, Outcome, TIMED_OUT, USER_CB},
    execute,
    gate::emulator,
    session::{Session, Tables},
    settings,
};

/// What a queue carries out.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) seq: u64,
    pub(crate) packets: Packets,
    pub(crate) size: u64,
    /// It resets the card with these events instead.
    pub(crate) late: Option<u64>,
    pub(crate) flags: u32,
    pub(crate) since: Instant,
    pub(crate) limit: Duration,
}

/// Where a command buffer is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packets {
    /// At an address of the card's.
    User(u64),
    /// The kernel's, by handle.
    Kernel(u64),
}

/// How a submission is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// So many of its command buffers are not done.
    Running(usize),
    Completed,
    Aborted,
    TimedOut,
}

/// The last submissions, as many as the kernel remembers.
#[derive(Debug)]
pub(crate) struct Fences {
    ring: u64,
    pub(crate) newest: u64,
    slots: HashMap<u64, (u64, End)>,
}

impl Fences {
    pub(crate) fn new(ring: u64) -> Self {
        Self {
            ring,
            newest: 0,
            slots: HashMap::new(),
        }
    }

    fn is_full(&self) -> bool {
        let slot = self.slots.get(&((self.newest + 1) % self.ring));
        matches!(slot, Some((_, End::Running(_))))
    }

    fn begin(&mut self, buffers: usize) -> u64 {
        self.newest += 1;
        let slot = self.newest % self.ring;
        self.slots
            .insert(slot, (self.newest, End::Running(buffers)));
        self.newest
    }

    /// How it ended; one that is forgotten went well.
    fn end(&self, seq: u64) -> Outcome<End> {
        if seq == 0 || seq > self.newest {
            return Err(libc::EINVAL);
        }
        match self.slots.get(&(seq % self.ring)) {
            Some((known, end)) if *known == seq => Ok(*end),
            _ => Ok(End::Completed),
        }
    }

    pub(crate) fn is_running(&self, seq: u64) -> bool {
        matches!(self.end(seq), Ok(End::Running(_)))
    }

    pub(crate) fn running(&self) -> usize {
        let running = |(_, end): &&(u64, End)| matches!(end, End::Running(_));
        self.slots.values().filter(running).count()
    }

    pub(crate) fn set(&mut self, seq: u64, to: End) {
        if let Some((known, end)) = self.slots.get_mut(&(seq % self.ring))
            && *known == seq
            && matches!(end, End::Running(_))
        {
            *end = to;
        }
    }

    /// One of its command buffers is done.
    pub(crate) fn done(&mut self, seq: u64) {
        match self.end(seq) {
            Ok(End::Running(1)) => self.set(seq, End::Completed),
            Ok(End::Running(left)) => self.set(seq, End::Running(left - 1)),
            _ => {}
        }
    }

    pub(crate) fn abort(&mut self) {
        for (_, end) in self.slots.values_mut() {
            if matches!(end, End::Running(_)) {
                *end = End::Aborted;
            }
        }
    }
}

/// Submits chunks; the number.
pub(crate) fn submit(
    session: &Arc<Session>,
    chunks: &[Chunk],
    flags: u32,
    limit: Option<Duration>,
    late: Option<u64>,
) -> Outcome<u64> {
    let mut tables = session.tables()?;
    for chunk in chunks {
        check(session, &tables, chunk)?;
    }
    while tables.fences.is_full() {
        if session.held_up.fetch_add(1, SeqCst) == 0 {
            emulator()
                .journal
                .misuse("a submission was held up: the ring was full".to_owned());
        }
        session.changed.wait(&mut tables);
        if tables.down {
            return Err(libc::EBUSY);
        }
    }
    let seq = tables.fences.begin(chunks.len());
    for chunk in chunks {
        let packets = match chunk.flags {
            USER_CB => Packets::User(chunk.cb_handle),
            _ => Packets::Kernel(chunk.cb_handle),
        };
        let job = Job {
            seq,
            packets,
            size: u64::from(chunk.cb_size),
            late,
            flags,
            since: Instant::now(),
            limit: limit.unwrap_or_else(|| Duration::from_millis(settings::TIMEOUT_MS.get())),
        };
        let queue = tables.queues.entry(chunk.queue_index).or_insert_with(|| {
            let (sender, jobs) = mpsc::channel();
            let session = Arc::clone(session);
            std::thread::spawn(move || execute::run(&session, &jobs));
            sender
        });
        if queue.send(job).is_err() {
            return Err(libc::EIO);
        }
    }
    Ok(seq)
}

/// What the kernel looks at before it takes a chunk.
fn check(session: &Session, tables: &Tables, chunk: &Chunk) -> Outcome {
    if chunk.cb_size < 8 || chunk.pad != [0; 10] || chunk.collective != 0 {
        return Err(libc::EINVAL);
    }
    if !has_queue(session.chip, chunk.queue_index) {
        return Err(libc::EINVAL);
    }
    let size = u64::from(chunk.cb_size);
    match (session.chip, chunk.flags) {
        (Chip::Gaudi, 0) => {
            let room = *tables.buffers.get(&chunk.cb_handle).ok_or(libc::EINVAL)?;
            if size > room {
                return Err(libc::EINVAL);
            }
            execute::filter(session.card, chunk.cb_handle, size)
        }
        (Chip::Gaudi2, USER_CB) if tables.memory.is_known(chunk.cb_handle, size) => Ok(()),
        (Chip::Gaudi2, USER_CB) => Err(libc::EFAULT),
        // Gaudi 2 takes no buffers of the kernel's, the first Gaudi's external queues no others, Gaudi 3 none at all.
        _ => Err(libc::EINVAL),
    }
}

fn has_queue(chip: Chip, queue: u32) -> bool {
    match chip {
        Chip::Gaudi => queue < 8,
        Chip::Gaudi2 => {
            let first = [8, 12, 48, 52, 84, 88, 120, 124];
            let engine = first
                .iter()
                .position(|first| (*first..first + 4).contains(&queue));
            queue < 8 || engine.is_some_and(|bit| settings::EDMA.get() >> bit & 1 == 1)
        }
        Chip::Gaudi3 => false,
    }
}

/// Result and status of a wait, as the library leaves them: on failure the status is what happens to stand there.
pub(crate) fn wait(session: &Session, seq: u64, timeout: Duration) -> (Outcome, u32) {
    let deadline = Instant::now().checked_add(timeout);
    let _counted = Counted::new(session, !timeout.is_zero());
    let mut tables = session.tables.lock();
    if tables.down {
        return (Err(libc::EBUSY), seq as u32);
    }
    loop {
        match tables.fences.end(seq) {
            Err(errno) => return (Err(errno), 0),
            Ok(End::Completed) => return (Ok(()), COMPLETED),
            Ok(End::Aborted) => return (Err(libc::EIO), ABORTED),
            Ok(End::TimedOut) => return (Err(libc::ETIMEDOUT), TIMED_OUT),
            Ok(End::Running(_)) => {}
        }
        if !changes(session, &mut tables, deadline) {
            return (Ok(()), BUSY);
        }
    }
}

/// Waits for any: a bit for each that has ended, 0 when the time ran out.
pub(crate) fn wait_any(session: &Session, seqs: &[u64], timeout: Duration) -> Outcome<u32> {
    let deadline = Instant::now().checked_add(timeout);
    let _counted = Counted::new(session, !timeout.is_zero());
    let mut tables = session.tables()?;
    loop {
        let mut set = 0;
        for (bit, seq) in seqs.iter().enumerate() {
            if !matches!(tables.fences.end(*seq)?, End::Running(_)) {
                set |= 1 << bit;
            }
        }
        if set != 0 || !changes(session, &mut tables, deadline) {
            return Ok(set);
        }
    }
}

/// Until something has changed; whether there was time left.
fn changes(
    session: &Session,
    tables: &mut parking_lot::MutexGuard<'_, Tables>,
    deadline: Option<Instant>,
) -> bool {
    let Some(deadline) = deadline else {
        session.changed.wait(tables);
        return true;
    };
    if Instant::now() >= deadline {
        return false;
    }
    session.changed.wait_until(tables, deadline);
    true
}

/// Counts a wait that sleeps.
struct Counted<'a>(Option<&'a Session>);

impl<'a> Counted<'a> {
    fn new(session: &'a Session, sleeps: bool) -> Self {
        if !sleeps {
            return Self(None);
        }
        let now = session.waiting.fetch_add(1, SeqCst) + 1;
        session.waiting_peak.fetch_max(now, SeqCst);
        Self(Some(session))
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.0 {
            session.waiting.fetch_sub(1, SeqCst);
        }
    }
}
