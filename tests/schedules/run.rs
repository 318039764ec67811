//! A run: does the steps of programs with the workers of a bed, keeps books of what was begun, and looks whether all of it came to what it had to.
//!
//! What must hold:
//! * each future ends once, and none but those that wait for what nobody sends is left when all that can happen has happened;
//! * a future that waits is polled again only when its waker was called: one that would be ready then, and was not woken, is a lost wake-up;
//! * each message comes once, whole, and in order; what was called off does not come;
//! * nothing is written around a buffer, behind a message, or into memory that came back; exposed memory holds what was put there and nothing else;
//! * in the end no worker holds anything for anybody, no operation is left, and of a connection that is over nothing at all.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    task::Poll,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{
    ActiveMessage, AmInbox, BufferMut, ByteStream, Endpoint, Error, ErrorKind, Mask, Matched,
    OpError, Priority, Received, Tag,
};

use super::{
    bed::{Bed, IDS, SLOT, SLOTS, Slot, WORD},
    books::{Books, Fate, Get, HEAD, Message, Put, Raise, Receive, Shelf, Stream, payload},
    guarded::{Guard, bytes},
    program::{Act, Fault, Step, length},
    task::{End, Fut, Task, What},
    wire::Frame,
};

const CLASSES: u64 = 3;
/// Rounds after which all that can happen has.
const ROUNDS: usize = 20_000;

/// Whether runs tell what they see, where they fail.
pub(crate) static TELLS: AtomicBool = AtomicBool::new(false);

pub(crate) struct Run {
    pub(crate) bed: Bed,
    pub(crate) shelf: Shelf,
    pub(crate) tasks: Vec<Task>,
    pub(crate) guard: Guard,
    /// Slots of nodes that something is under way for.
    busy: Vec<[bool; SLOTS]>,
    /// Value of each word and counter when the program began.
    bases: Vec<[u64; 2]>,
    pub(crate) steps: u64,
    pub(crate) programs: u64,
    /// All that was seen, folded.
    pub(crate) trace: u64,
    pub(crate) said: Option<Vec<String>>,
    /// Something was killed or shut down: the bed is not used again.
    pub(crate) is_spent: bool,
}

/// An inbox that goes back when it is dropped.
struct Lent(Slot, Option<AmInbox>);

impl Drop for Lent {
    fn drop(&mut self) {
        *self.0.borrow_mut() = self.1.take();
    }
}

fn got(buffer: Result<Received<BufferMut>, OpError<BufferMut>>) -> End {
    End::Got(buffer)
}

impl Run {
    pub(crate) fn new(bed: Bed) -> Self {
        let nodes = bed.nodes.len();
        let mut run = Self {
            bed,
            shelf: Shelf::default(),
            tasks: Vec::new(),
            guard: Guard::default(),
            busy: vec![[false; SLOTS]; nodes],
            bases: Vec::new(),
            steps: 0,
            programs: 0,
            trace: 0,
            said: TELLS.load(Relaxed).then(Vec::new),
            is_spent: false,
        };
        run.begin();
        run
    }

    pub(crate) fn play(&mut self, steps: &[Step]) {
        let runtime = self.bed.runtime.clone();
        let _inside = runtime.enter();
        for step in steps {
            self.step(*step);
        }
    }

    fn fold(&mut self, what: &str, words: &[u64]) {
        for word in words.iter().chain([&(what.len() as u64)]) {
            self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        }
        if let Some(said) = &mut self.said {
            said.push(format!("{what} {words:?}"));
        }
    }

    fn step(&mut self, step: Step) {
        self.steps += 1;
        if self.said.is_some() {
            self.fold(&format!("-- {step:?}"), &[]);
        }
        match step {
            Step::Act(act, args) => self.act(act, args),
            Step::Poll(roll) => {
                let woken = (0..self.tasks.len()).filter(|index| self.tasks[*index].is_woken());
                let woken: Vec<_> = woken.collect();
                if !woken.is_empty() {
                    self.poll(woken[roll as usize % woken.len()]);
                }
            }
            Step::Pass(roll) => {
                let node = roll as usize % self.bed.nodes.len();
                self.pass(node, roll & 0x1_0000 != 0);
            }
            Step::Arrive(roll, count) => {
                let (conn, side) = self.way(roll);
                let count = if count.is_multiple_of(3) { usize::MAX } else { count as usize % 4 + 1 };
                self.arrive(conn, side, count);
            }
            Step::Room(roll, room) => {
                let (conn, side) = self.way(roll);
                let room = [usize::MAX, 1, 2, 5][room as usize % 4];
                self.bed.conns[conn].wire.lock().ways[side].room = room;
            }
            Step::Flow(roll, flow) => {
                let (conn, side) = self.way(roll);
                let flow = [usize::MAX, 0, 100, 1000, 3000, 0][flow as usize % 6];
                self.bed.conns[conn].wire.lock().ways[side].flow = flow;
            }
            Step::Drop(roll) => {
                if !self.tasks.is_empty() {
                    let task = self.tasks.swap_remove(roll as usize % self.tasks.len());
                    self.dropped(task);
                }
            }
            Step::CallOff(roll) => {
                if !self.tasks.is_empty() {
                    let index = roll as usize % self.tasks.len();
                    self.call_off(index);
                }
            }
            Step::Rest => self.rest(),
            Step::Twist(args) => self.twist(args),
            Step::Fault(fault, args) => self.fault(fault, args),
            Step::End => self.end(),
        }
    }

    fn way(&self, roll: u32) -> (usize, usize) {
        (roll as usize / 2 % self.bed.conns.len(), roll as usize % 2)
    }

    fn pass(&mut self, node: usize, outside: bool) {
        if self.bed.nodes[node].is_over {
            return;
        }
        let worker = &self.bed.nodes[node].worker;
        let moved = match outside {
            true => worker.progress(),
            false => worker.in_flight(),
        };
        self.fold("pass", &[node as u64, moved as u64]);
    }

    fn arrive(&mut self, conn: usize, side: usize, count: usize) -> usize {
        let wire = self.bed.conns[conn].wire.clone();
        let mut wire = wire.lock();
        let way = &mut wire.ways[side];
        let before = way.arrived.len();
        let came = way.arrive(count);
        for frame in way.arrived.iter().skip(before) {
            let words = [conn as u64, side as u64, frame.id.into(), frame.body.len() as u64];
            self.fold("arrives", &words);
        }
        came
    }

    // --- Tasks.

    fn push(&mut self, task: Task, at_once: bool) {
        self.tasks.push(task);
        let index = self.tasks.len() - 1;
        if self.tasks[index].has_begun {
            let what = self.tasks[index].what;
            self.begun(what);
        }
        match at_once {
            true => {
                self.poll(index);
            }
            false => self.tasks[index].wake(),
        }
    }

    /// Polls a task for the first time, or because it was woken.
    pub(crate) fn poll(&mut self, index: usize) -> bool {
        if !self.tasks[index].has_begun {
            let what = self.tasks[index].what;
            self.begun(what);
        }
        let task = &mut self.tasks[index];
        let poll = task.poll();
        let wakes = task.wakes();
        let words = [task.node as u64, wakes.into(), poll.is_ready().into()];
        let name = if self.said.is_some() { format!("{:?}", task.what) } else { String::new() };
        self.fold(&name, &words);
        match poll {
            Poll::Ready(end) => {
                let task = self.tasks.swap_remove(index);
                self.ended(task, end);
                true
            }
            Poll::Pending => false,
        }
    }

    fn poll_woken(&mut self) -> usize {
        let mut polled = 0;
        let mut index = 0;
        while index < self.tasks.len() {
            if self.tasks[index].is_woken() {
                polled += 1;
                if self.poll(index) {
                    continue;
                }
            }
            index += 1;
        }
        polled
    }

    fn call_off(&mut self, index: usize) {
        let task = self.tasks.swap_remove(index);
        let what = task.what;
        match task.call_off() {
            Ok(task) => {
                if let What::Recv(receive) | What::Claim(receive) = what {
                    self.shelf.borrow_mut().receives[receive].is_loose = true;
                }
                self.tasks.push(task);
            }
            Err(task) => self.dropped(task),
        }
    }

    /// What a first poll promises.
    fn begun(&mut self, what: What) {
        let books = &mut *self.shelf.borrow_mut();
        let order = Some(books.tick());
        match what {
            What::Send(number) | What::Am(number) => {
                let message = &mut books.messages[number];
                (message.order, message.fate) = (order, Fate::Begun);
            }
            What::Recv(number) | What::Claim(number) => books.receives[number].order = order,
            What::Put(number) => books.puts[number].fate = Fate::Begun,
            What::Atomic(number) | What::Signal(number) => {
                books.raises[number].fate = Fate::Begun;
            }
            What::Flush(number, conn, side) => {
                let puts = books.puts.iter().enumerate().filter(|(_, put)| {
                    put.has_slot
                        && (put.conn, put.side) == (conn, side)
                        && matches!(put.fate, Fate::Begun | Fate::Done)
                });
                let puts = puts.map(|(number, _)| number).collect();
                books.flushes[number] = puts;
            }
            _ => {}
        }
    }

    fn dropped(&mut self, task: Task) {
        let (what, has_begun) = (task.what, task.has_begun);
        let is_open = task.is_called_off;
        drop(task);
        if is_open {
            // Whether that came in time nobody hears.
            let books = &mut *self.shelf.borrow_mut();
            match what {
                What::Send(number) | What::Am(number) => books.messages[number].fate = Fate::Open,
                What::Atomic(number) => books.raises[number].fate = Fate::Open,
                _ => {}
            }
        }
        match what {
            What::Recv(number) | What::Claim(number) => {
                self.shelf.borrow_mut().let_go(number, has_begun);
            }
            What::Put(number) if !has_begun => self.free_slot(number),
            What::Get(number) if !has_begun => self.free_get(number),
            _ => {}
        }
    }

    /// Whether what is between these nodes may fail.
    fn may_fail(&self, task: &Task) -> bool {
        let is_over = |node: usize| self.bed.nodes[node].is_over;
        match task.conn {
            Some(conn) => {
                let conn = &self.bed.conns[conn];
                conn.is_faulty || conn.nodes.iter().any(|node| is_over(*node))
            }
            // Any connection of the node.
            None => {
                let mut conns = self.bed.conns.iter();
                is_over(task.node)
                    || conns.any(|conn| conn.is_faulty && conn.nodes.contains(&task.node))
            }
        }
    }

    #[track_caller]
    fn failed(&self, task: &Task, error: &Error) -> Fate {
        if error.kind() == ErrorKind::Canceled {
            return Fate::Never;
        }
        assert!(self.may_fail(task), "{:?} failed: {error}", task.what);
        Fate::Open
    }

    fn ended(&mut self, task: Task, end: End) {
        match (task.what, end) {
            (What::Send(number), End::Unit(result)) => {
                let fate = match &result {
                    Ok(()) => Fate::Done,
                    Err(error) => self.failed(&task, error),
                };
                let books = &mut *self.shelf.borrow_mut();
                books.messages[number].fate = fate;
                let message = &books.messages[number];
                if message.sync && fate == Fate::Done && !self.may_fail(&task) {
                    let node = self.bed.conns[message.conn].nodes[1 - message.side];
                    let is_met = books.receives.iter().any(|receive| {
                        receive.node == node
                            && receive.order.is_some()
                            && receive.matches(message.tag)
                    });
                    assert!(is_met, "a synchronous send that nobody received: {message:?}");
                }
            }
            (What::Am(number), End::Unit(result)) => {
                let fate = match &result {
                    Ok(()) => Fate::Done,
                    Err(error) if error.kind() == ErrorKind::Rejected => {
                        let is_hostile = self.shelf.borrow().is_hostile;
                        let message = &mut self.shelf.borrow_mut().messages[number];
                        assert!(
                            is_hostile || message.is_refused || message.am == Some(IDS),
                            "rejected by nobody: {message:?}"
                        );
                        Fate::Open
                    }
                    Err(error) => self.failed(&task, error),
                };
                self.shelf.borrow_mut().messages[number].fate = fate;
            }
            (What::Recv(number) | What::Claim(number), End::Got(result)) => {
                self.received(&task, number, result);
            }
            (What::Claim(number), End::Over(error)) => {
                if let Some(error) = error {
                    let _ = self.failed(&task, &error);
                }
                self.shelf.borrow_mut().let_go(number, true);
            }
            (What::Put(number), End::Unit(result)) => {
                let fate = match &result {
                    Ok(()) => Fate::Done,
                    Err(error) => self.failed(&task, error),
                };
                let local = {
                    let put = &mut self.shelf.borrow_mut().puts[number];
                    put.fate = fate;
                    put.local
                };
                match fate {
                    Fate::Done if !local => {
                        self.look_at_put(number);
                        self.free_slot(number);
                    }
                    Fate::Never => self.free_slot(number),
                    _ => {}
                }
            }
            (What::Get(number), End::Buffer(result)) => {
                match result {
                    Ok(buffer) => {
                        let books = self.shelf.borrow();
                        let get = &books.gets[number];
                        let hostile = books.is_hostile;
                        let from = get.slot * SLOT;
                        let wanted = &self.bed.nodes[get.node].shadow[from..from + get.length];
                        let found = buffer.as_slice().expect("host memory");
                        assert!(hostile || found == wanted, "a get brought other bytes");
                    }
                    Err(error) => {
                        let (error, _) = error.into_parts();
                        let _ = self.failed(&task, &error);
                    }
                }
                self.free_get(number);
            }
            (What::Atomic(number), End::Word(result)) => {
                let fate = match &result {
                    Ok(_) => Fate::Done,
                    Err(error) => self.failed(&task, error),
                };
                let raise = &mut self.shelf.borrow_mut().raises[number];
                (raise.fate, raise.old) = (fate, result.ok());
            }
            (What::Signal(number), End::Unit(result)) => {
                let fate = match &result {
                    Ok(()) => Fate::Done,
                    Err(error) => self.failed(&task, error),
                };
                self.shelf.borrow_mut().raises[number].fate = fate;
            }
            (What::Flush(number, ..), End::Unit(result)) => match result {
                Ok(()) => {
                    let puts = std::mem::take(&mut self.shelf.borrow_mut().flushes[number]);
                    for put in puts {
                        let is_there = {
                            let put = &self.shelf.borrow().puts[put];
                            put.has_slot && put.fate != Fate::Open
                        };
                        if is_there && !self.may_fail(&task) {
                            self.look_at_put(put);
                        }
                    }
                }
                // An active message was refused whose future was over.
                Err(error) if error.kind() == ErrorKind::Rejected => {}
                Err(error) => {
                    let _ = self.failed(&task, &error);
                }
            },
            (_, End::Unit(Err(error)) | End::Word(Err(error)) | End::Over(Some(error))) => {
                let _ = self.failed(&task, &error);
            }
            _ => {}
        }
    }

    fn received(
        &mut self,
        task: &Task,
        number: usize,
        result: Result<Received<BufferMut>, OpError<BufferMut>>,
    ) {
        let hostile = self.shelf.borrow().is_hostile;
        let received = match result {
            Ok(received) => received,
            Err(error) => {
                let (error, _) = error.into_parts();
                let is_truncated = error.kind() == ErrorKind::Truncated;
                if !is_truncated && !hostile {
                    let _ = self.failed(task, &error);
                }
                let books = &mut *self.shelf.borrow_mut();
                books.receives[number].is_truncated = is_truncated;
                books.let_go(number, !is_truncated);
                return;
            }
        };
        let books = &mut *self.shelf.borrow_mut();
        books.let_go(number, false);
        let receive = &mut books.receives[number];
        assert!(receive.matches(received.tag.0), "{receive:?} got {:?}", received.tag);
        let buffer = received.buffer.as_slice().expect("host memory");
        let (front, behind) = buffer.split_at(received.len);
        assert!(behind.iter().all(|byte| *byte == 0), "written behind the message");
        if hostile {
            return;
        }
        let message = Books::number_of(received.tag.0, front);
        let message = message.filter(|message| *message < books.messages.len());
        let message = message.expect("a message that somebody has sent");
        receive.got = Some(message);
        let found = &mut books.messages[message];
        found.received += 1;
        assert_eq!((found.tag, found.length), (received.tag.0, received.len));
        assert_eq!(found.am, None);
        assert!(front == payload(message, found.tag, found.length), "other bytes: {found:?}");
        let conn = &self.bed.conns[found.conn];
        assert_eq!(conn.nodes[1 - found.side], task.node);
        assert_eq!(conn.ids[1 - found.side], received.from);
    }

    // --- Exposed memory.

    fn look_at_put(&mut self, number: usize) {
        let (node, conn, at) = {
            let books = self.shelf.borrow();
            let put = &books.puts[number];
            let shadow = &mut self.bed.nodes[put.node].shadow;
            shadow[put.at..put.at + put.length].copy_from_slice(&bytes(put.serial, put.length));
            (put.node, put.conn, put.at)
        };
        if !self.bed.conns[conn].is_hostile {
            self.look_at_slot(node, at / SLOT);
        }
    }

    #[track_caller]
    fn look_at_slot(&self, node: usize, slot: usize) {
        let node = &self.bed.nodes[node];
        let mut found = vec![0; SLOT];
        let from = slot * SLOT;
        node.region.read_at(from, &mut found).expect("within");
        let wanted = &node.shadow[from..from + SLOT];
        if found != wanted {
            let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
            panic!("slot {slot} of exposed memory is not what was put there, from {at:?} on");
        }
    }

    fn free_slot(&mut self, number: usize) {
        let put = &mut self.shelf.borrow_mut().puts[number];
        put.has_slot = false;
        self.busy[put.node][put.at / SLOT] = false;
    }

    fn free_get(&mut self, number: usize) {
        let get = &self.shelf.borrow().gets[number];
        self.busy[get.node][get.slot] = false;
    }

    // --- Acts.

    /// An open end of a connection.
    fn end_of(&self, roll: u32) -> Option<(usize, usize, Endpoint)> {
        let (conn, side) = self.way(roll);
        let found = &self.bed.conns[conn];
        if self.bed.nodes[found.nodes[side]].is_over {
            return None;
        }
        Some((conn, side, found.ends[side].clone()?))
    }

    fn alive(&self, roll: u32) -> Option<usize> {
        let node = roll as usize % self.bed.nodes.len();
        (!self.bed.nodes[node].is_over).then_some(node)
    }

    fn act(&mut self, act: Act, [a, b, c, d]: [u32; 4]) {
        let at_once = d & 1 == 0;
        match act {
            Act::Send => self.send(a, b, length(c), d),
            Act::Recv => {
                if let Some(node) = self.alive(a) {
                    let receive = self.receive(node, b, c);
                    self.recv(node, receive, d & 2 == 0, at_once);
                }
            }
            Act::Claim => {
                if let Some(node) = self.alive(a) {
                    let receive = self.receive(node, b, c);
                    self.claim(node, receive, d & 2 == 0, at_once);
                }
            }
            Act::Take => {
                if let Some(node) = self.alive(a) {
                    self.take(node, b, d & 2 == 0);
                }
            }
            Act::Put => self.put(a, b as usize % SLOTS, length(c), d),
            Act::Get => self.get(a, b as usize % SLOTS, length(c), at_once),
            Act::Atomic => self.atomic(a, d),
            Act::Flush => {
                if let Some((conn, side, endpoint)) = self.end_of(a) {
                    let node = self.bed.conns[conn].nodes[side];
                    let number = self.shelf.borrow().flushes.len();
                    self.shelf.borrow_mut().flushes.push(Vec::new());
                    let task = Task::boxed(What::Flush(number, conn, side), node, Some(conn), async move {
                        End::Unit(match d & 2 {
                            0 => endpoint.flush().await,
                            _ => endpoint.fence().await,
                        })
                    });
                    self.push(task, at_once);
                }
            }
            Act::Am => self.am(a, b as usize % (IDS + 1), length(c), d),
            Act::Inbox => {
                if let Some(node) = self.alive(a) {
                    self.inbox(node, b as usize % IDS, c, at_once);
                }
            }
            Act::Open => {
                // Now and then more than a window.
                let times = if b & 0x70_0000 == 0 { 40 } else { 3 };
                self.open(a, length(b) * times, c, at_once);
            }
            Act::Accept => {
                if let Some((conn, side, endpoint)) = self.end_of(a) {
                    let read = Self::accept(self.shelf.clone(), conn, endpoint, c);
                    let node = self.bed.conns[conn].nodes[side];
                    let task = Task::boxed(What::Read, node, Some(conn), read);
                    self.push(task, at_once);
                }
            }
            Act::Signal => {
                if let Some((conn, side, endpoint)) = self.end_of(a) {
                    let counter = self.bed.conns[conn].counters[side].clone();
                    let counter = counter.expect("imported");
                    let number = self.raise(conn, side, true);
                    let node = self.bed.conns[conn].nodes[side];
                    let task = Task::boxed(What::Signal(number), node, Some(conn), async move {
                        End::Unit(endpoint.signal(&counter, 1).await)
                    });
                    self.push(task, at_once);
                }
            }
            Act::Wait => {
                if let Some(node) = self.alive(a) {
                    let counter = self.bed.nodes[node].counter.clone();
                    let at_least = counter.value() + u64::from(b % 3);
                    let task = Task::boxed(What::Wait, node, None, async move {
                        let value = counter.wait(at_least).await;
                        assert!(value.as_ref().is_ok_and(|value| *value >= at_least) || value.is_err());
                        End::Word(value)
                    });
                    self.push(task, at_once);
                }
            }
            Act::Ready => {
                if let Some((conn, side, endpoint)) = self.end_of(a) {
                    let node = self.bed.conns[conn].nodes[side];
                    let task = Task::boxed(What::Ready, node, Some(conn), async move {
                        End::Unit(endpoint.ready().await)
                    });
                    self.push(task, at_once);
                }
            }
        }
    }

    pub(crate) fn message(&mut self, conn: usize, side: usize, am: Option<usize>, tag: Option<u64>, length: usize) -> usize {
        let books = &mut *self.shelf.borrow_mut();
        let number = books.messages.len();
        let (class, exact) = (tag.unwrap_or(0) & 0xff, tag.is_some_and(|tag| tag & 0x100 != 0));
        let serial = if exact { 0 } else { (number as u64 + 1) << 16 };
        books.messages.push(Message {
            conn,
            side,
            am,
            tag: class | serial,
            length: if exact { length.max(8) } else { length },
            sync: false,
            priority: false,
            order: None,
            fate: Fate::New,
            received: 0,
            is_refused: false,
        });
        number
    }

    fn send(&mut self, end: u32, class: u32, length: usize, how: u32) {
        let Some((conn, side, endpoint)) = self.end_of(end) else {
            return;
        };
        let exact = u64::from(class & 0x100);
        let tag = u64::from(class & 0xff) % CLASSES | exact;
        let number = self.message(conn, side, None, Some(tag), length);
        let (sync, priority) = (how & 0x30 == 0, how & 0x1c0 == 0);
        let (tag, bytes) = {
            let message = &mut self.shelf.borrow_mut().messages[number];
            (message.sync, message.priority) = (sync, priority);
            (message.tag, payload(number, message.tag, message.length))
        };
        let source = self.guard.source(&bytes);
        let node = self.bed.conns[conn].nodes[side];
        let priority = if priority { Priority::High } else { Priority::Normal };
        if how & 2 == 0 {
            let send = endpoint.tag_send(tag, source).priority(priority);
            let send = if sync { send.sync() } else { send };
            match send.post() {
                Ok(op) => {
                    let task = Task::new(What::Send(number), node, Some(conn), Fut::Send(op));
                    self.push(task, how & 1 == 0);
                }
                Err(error) => {
                    self.not_posted(conn, error.error());
                }
            }
            return;
        }
        let task = Task::boxed(What::Send(number), node, Some(conn), async move {
            let send = endpoint.tag_send(tag, source).priority(priority);
            End::Unit(if sync { send.sync().await } else { send.await })
        });
        self.push(task, how & 1 == 0);
    }

    fn receive(&mut self, node: usize, class: u32, room: u32) -> usize {
        let books = &mut *self.shelf.borrow_mut();
        let number = books.receives.len();
        let (tag, mask) = match class & 0x300 {
            0 => (u64::from(class & 0xff) % CLASSES, u64::MAX),
            0x100 => (0, 0),
            _ => (u64::from(class & 0xff) % CLASSES, 0xff),
        };
        let room = if room.is_multiple_of(5) { length(room >> 8) } else { 20_000 };
        books.receives.push(Receive {
            node,
            tag,
            mask,
            room,
            order: None,
            got: None,
            is_truncated: false,
            is_loose: false,
            is_over: false,
            ended: 0,
        });
        number
    }

    pub(crate) fn recv(&mut self, node: usize, number: usize, posts: bool, at_once: bool) {
        let (tag, mask, room) = {
            let receive = &self.shelf.borrow().receives[number];
            (receive.tag, receive.mask, receive.room)
        };
        let worker = self.bed.nodes[node].worker.clone();
        let buffer = self.guard.target(room);
        if posts {
            let op = worker.tag_recv(Tag(tag), Mask(mask), buffer).post();
            let task = Task::new(What::Recv(number), node, None, Fut::Recv(op));
            return self.push(task, at_once);
        }
        let task = Task::boxed(What::Recv(number), node, None, async move {
            got(worker.tag_recv(Tag(tag), Mask(mask), buffer).await)
        });
        self.push(task, at_once);
    }

    fn claim(&mut self, node: usize, number: usize, takes: bool, at_once: bool) {
        let (tag, mask, room) = {
            let receive = &self.shelf.borrow().receives[number];
            (receive.tag, receive.mask, receive.room)
        };
        let worker = self.bed.nodes[node].worker.clone();
        let buffer = self.guard.target(room);
        let task = Task::boxed(What::Claim(number), node, None, async move {
            match worker.tag_matched(Tag(tag), Mask(mask)).await {
                Ok(matched) if takes => got(matched.recv(buffer).await),
                Ok(matched) => {
                    drop(matched);
                    End::Over(None)
                }
                Err(error) => End::Over(Some(error)),
            }
        });
        self.push(task, at_once);
    }

    /// Takes a message that is here.
    fn take(&mut self, node: usize, class: u32, takes: bool) {
        let receive = self.receive(node, class, 1);
        let (tag, mask) = {
            let books = self.shelf.borrow();
            let receive = &books.receives[receive];
            (Tag(receive.tag), Mask(receive.mask))
        };
        let worker = self.bed.nodes[node].worker.clone();
        let probed = worker.tag_probe(tag, mask);
        let taken = worker.tag_take(tag, mask);
        if probed.is_some() {
            let taken = taken.as_ref().map(Matched::info);
            assert_eq!(probed, taken, "probed, and another one taken");
        }
        self.begun(What::Recv(receive));
        match taken {
            Some(matched) if takes => {
                let op = matched.recv(self.guard.target(20_000));
                let task = Task::new(What::Recv(receive), node, None, Fut::Recv(op));
                self.tasks.push(task);
                self.poll(self.tasks.len() - 1);
            }
            taken => {
                drop(taken);
                self.shelf.borrow_mut().let_go(receive, true);
            }
        }
    }

    fn put(&mut self, end: u32, slot: usize, length: usize, how: u32) {
        let Some((conn, side, endpoint)) = self.end_of(end) else {
            return;
        };
        let [node, target] = [side, 1 - side].map(|side| self.bed.conns[conn].nodes[side]);
        if std::mem::replace(&mut self.busy[target][slot], true) {
            return;
        }
        let at = slot * SLOT + (how >> 16) as usize % (SLOT - length + 1);
        let (local, signals) = (how & 2 == 0, how & 12 == 0);
        let number = {
            let books = &mut *self.shelf.borrow_mut();
            books.puts.push(Put {
                node: target,
                conn,
                side,
                at,
                serial: books.puts.len() as u64 + 1000,
                length,
                local,
                fate: Fate::New,
                has_slot: true,
                signals,
            });
            books.puts.len() - 1
        };
        let source = self.guard.source(&bytes(number as u64 + 1000, length));
        let found = &self.bed.conns[conn];
        let region = found.remotes[side].clone().expect("imported");
        let region = region.slice(at..at + length);
        let counter = found.counters[side].clone().expect("imported");
        let put = move |endpoint: Endpoint| async move {
            let put = endpoint.put(source, region);
            let put = if local { put.local() } else { put };
            let put = if signals { put.signal(&counter) } else { put };
            End::Unit(put.await)
        };
        let task = Task::boxed(What::Put(number), node, Some(conn), put(endpoint));
        self.push(task, how & 1 == 0);
    }

    fn get(&mut self, end: u32, slot: usize, length: usize, at_once: bool) {
        let Some((conn, side, endpoint)) = self.end_of(end) else {
            return;
        };
        let [node, target] = [side, 1 - side].map(|side| self.bed.conns[conn].nodes[side]);
        if std::mem::replace(&mut self.busy[target][slot], true) {
            return;
        }
        let number = {
            let books = &mut *self.shelf.borrow_mut();
            books.gets.push(Get {
                node: target,
                slot,
                length,
            });
            books.gets.len() - 1
        };
        let buffer = self.guard.target(length);
        let region = self.bed.conns[conn].remotes[side].clone().expect("imported");
        let region = region.slice(slot * SLOT..slot * SLOT + length);
        let task = Task::boxed(What::Get(number), node, Some(conn), async move {
            End::Buffer(endpoint.get(region, buffer).await)
        });
        self.push(task, at_once);
    }

    fn raise(&mut self, conn: usize, side: usize, counter: bool) -> usize {
        let books = &mut *self.shelf.borrow_mut();
        books.raises.push(Raise {
            node: self.bed.conns[conn].nodes[1 - side],
            conn,
            counter,
            fate: Fate::New,
            old: None,
        });
        books.raises.len() - 1
    }

    fn atomic(&mut self, end: u32, how: u32) {
        let Some((conn, side, _)) = self.end_of(end) else {
            return;
        };
        let number = self.raise(conn, side, false);
        let node = self.bed.conns[conn].nodes[side];
        let region = self.bed.conns[conn].remotes[side].clone().expect("imported");
        let what = What::Atomic(number);
        if how & 2 == 0 {
            match region.fetch_add(WORD, 1_u64).post() {
                Ok(op) => self.push(Task::new(what, node, Some(conn), Fut::Word(op)), how & 1 == 0),
                Err(error) => {
                    self.not_posted(conn, &error);
                }
            }
            return;
        }
        let task = Task::boxed(what, node, Some(conn), async move {
            End::Word(region.fetch_add(WORD, 1_u64).await)
        });
        self.push(task, how & 1 == 0);
    }

    #[track_caller]
    fn not_posted(&self, conn: usize, error: &Error) {
        let expected = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Rejected);
        assert!(expected || self.bed.conns[conn].is_faulty, "not posted: {error}");
    }

    fn am(&mut self, end: u32, id: usize, length: usize, how: u32) {
        let Some((conn, side, endpoint)) = self.end_of(end) else {
            return;
        };
        let number = self.message(conn, side, Some(id), None, length);
        let node = self.bed.conns[conn].nodes[side];
        let source = self.guard.source(&bytes(number as u64 + 1, length));
        let header = (number as u64).to_le_bytes().to_vec();
        if how & 2 == 0 {
            match endpoint.am_send(id as u16, header, source).post() {
                Ok(op) => {
                    let task = Task::new(What::Am(number), node, Some(conn), Fut::Send(op));
                    self.push(task, how & 1 == 0);
                }
                Err(error) => {
                    self.not_posted(conn, error.error());
                }
            }
            return;
        }
        let task = Task::boxed(What::Am(number), node, Some(conn), async move {
            End::Unit(endpoint.am_send(id as u16, header, source).await)
        });
        self.push(task, how & 1 == 0);
    }

    fn inbox(&mut self, node: usize, id: usize, how: u32, at_once: bool) {
        let slot = self.bed.nodes[node].inboxes[id].clone();
        let Some(inbox) = slot.borrow_mut().take() else {
            return;
        };
        let mut lent = Lent(slot, Some(inbox));
        let (shelf, guard) = (self.shelf.clone(), self.guard.clone());
        let task = Task::boxed(What::Inbox, node, None, async move {
            let inbox = lent.1.as_mut().expect("lent");
            let message = inbox.recv().await;
            drop(lent);
            match message {
                Some(message) => Self::arrived(shelf, guard, node, message, how).await,
                None => End::Over(None),
            }
        });
        self.push(task, at_once);
    }

    /// What is done with an active message.
    async fn arrived(shelf: Shelf, guard: Guard, node: usize, message: ActiveMessage, how: u32) -> End {
        if shelf.borrow().is_hostile {
            let _ = message.receive(guard.target(20_000)).await;
            return End::Over(None);
        }
        let number = message.header().first_chunk::<8>();
        let number = u64::from_le_bytes(*number.expect("a number")) as usize;
        let length = {
            let books = &mut *shelf.borrow_mut();
            books.arrivals.push((node, message.from(), number));
            let known = &mut books.messages[number];
            known.received += 1;
            assert_eq!((known.am, known.length), (Some(usize::from(message.id().0)), message.len()));
            known.is_refused |= how % 8 < 2;
            known.length
        };
        let books = shelf.clone();
        let whole = |found: &[u8]| {
            let is_whole = found == bytes(number as u64 + 1, length);
            assert!(is_whole || books.borrow().is_hostile, "other bytes");
        };
        let failed = |error: Error| End::Over((error.kind() != ErrorKind::Canceled).then_some(error));
        match how % 8 {
            0 => message.reject("not wanted"),
            1 => drop(message),
            2 | 3 => match message.bytes().await {
                Ok(bytes) => whole(&bytes),
                Err(error) => return failed(error),
            },
            _ => match message.receive(guard.target(20_000)).await {
                Ok(received) => {
                    let found = received.buffer.as_slice().expect("host memory");
                    whole(&found[..received.len]);
                    assert!(found[received.len..].iter().all(|byte| *byte == 0));
                }
                Err(error) => return failed(error.into_parts().0),
            },
        }
        End::Over(None)
    }

    fn open(&mut self, end: u32, total: usize, how: u32, at_once: bool) {
        let Some((conn, side, endpoint)) = self.end_of(end) else {
            return;
        };
        let node = self.bed.conns[conn].nodes[side];
        let number = {
            let books = &mut *self.shelf.borrow_mut();
            books.streams.push(Stream {
                conn,
                total,
                ..Stream::default()
            });
            books.streams.len() - 1
        };
        let shelf = self.shelf.clone();
        let write = async move {
            let mut stream = endpoint.stream().await.map_err(std::io::Error::other)?;
            stream.write_all(&(number as u64).to_le_bytes()).await?;
            shelf.borrow_mut().streams[number].written = HEAD;
            let all = bytes(number as u64, total);
            for part in all.chunks(1 + how as usize % 7000) {
                match how & 0x10_0000 {
                    0 => stream.write_all(part).await?,
                    _ => stream.write_buffer(part.to_vec()).await.map_err(std::io::Error::other)?,
                }
                shelf.borrow_mut().streams[number].written += part.len();
            }
            if how & 0x20_0000 != 0 {
                stream.flush().await?;
            }
            match how & 0xc0_0000 {
                // It ends with its drop.
                0 => {}
                0x40_0000 => {
                    stream.reset();
                    return std::io::Result::Ok(());
                }
                _ => stream.shutdown().await?,
            }
            shelf.borrow_mut().streams[number].is_finished = true;
            std::io::Result::Ok(())
        };
        let shelf = self.shelf.clone();
        let task = Task::boxed(What::Write(number), node, Some(conn), async move {
            let result = write.await;
            let reader_left = shelf.borrow().streams[number].reader_left;
            End::Over(match result {
                Err(error) if !reader_left => {
                    Some(Error::io("a write", error))
                }
                _ => None,
            })
        });
        self.push(task, at_once);
    }

    fn accept(shelf: Shelf, conn: usize, endpoint: Endpoint, how: u32) -> impl Future<Output = End> {
        async move {
            match endpoint.accept_stream().await {
                Ok(stream) => Self::read(shelf, conn, stream, how).await,
                Err(error) => End::Over(Some(error)),
            }
        }
    }

    /// Reads a stream to its end, or lets go of it before.
    async fn read(shelf: Shelf, conn: usize, mut stream: ByteStream, how: u32) -> End {
        let mut found = Vec::new();
        let mut buffer = vec![0; 1 + how as usize % 9000];
        let leaves = (how & 0x300_0000 == 0).then_some(how as usize % 5000);
        // Told, whatever becomes of this future.
        struct Leaving(Shelf, usize, Option<usize>);
        impl Drop for Leaving {
            fn drop(&mut self) {
                let Self(shelf, conn, known) = self;
                for (number, stream) in shelf.borrow_mut().streams.iter_mut().enumerate() {
                    // One that has read nothing may be that of any.
                    if known.map_or(stream.conn == *conn, |known| known == number) {
                        stream.reader_left |= !stream.is_read;
                    }
                }
            }
        }
        let mut leaving = Leaving(shelf.clone(), conn, None);
        loop {
            let count = match stream.read(&mut buffer).await {
                Ok(count) => count,
                // It was reset, or its connection ended.
                Err(_) => return End::Over(None),
            };
            found.extend_from_slice(&buffer[..count]);
            let books = &mut *shelf.borrow_mut();
            let number = found.first_chunk::<HEAD>();
            let number = number.map(|number| u64::from_le_bytes(*number) as usize);
            let number = number.filter(|number| *number < books.streams.len());
            if let Some(number) = number.filter(|_| !books.is_hostile) {
                leaving.2 = Some(number);
                let stream = &mut books.streams[number];
                let bytes = bytes(number as u64, stream.total);
                let is_whole = bytes.starts_with(&found[HEAD..]);
                assert!(is_whole, "other bytes in {stream:?}");
                if count == 0 {
                    stream.is_read = true;
                    assert!(found.len() >= stream.written, "{} of {stream:?}", found.len());
                    assert!(!stream.is_finished || found.len() == HEAD + stream.total);
                }
            }
            if count == 0 {
                return End::Over(None);
            }
            if leaves.is_some_and(|leaves| found.len() >= leaves) {
                return End::Over(None);
            }
        }
    }

    // --- What goes wrong.

    fn twist(&mut self, [a, b, c, d]: [u32; 4]) {
        let (conn, side) = self.way(a);
        let wire = self.bed.conns[conn].wire.clone();
        let mut wire = wire.lock();
        let way = &mut wire.ways[side];
        // Only what is a copy is changed: of what is lent the bytes are the sender's.
        way.arrive(usize::MAX);
        let count = way.arrived.len();
        self.bed.conns[conn].is_hostile = true;
        self.shelf.borrow_mut().is_hostile = true;
        self.bed.conns[conn].is_faulty = true;
        if c.is_multiple_of(8) || count == 0 {
            let word = |shift: u32| u64::from(b.rotate_left(shift)) << (d % 33) | u64::from(d & 0xff);
            let body = (0..c as usize / 8 % 80).map(|at| (b >> (at % 25)) as u8).collect();
            let frame = Frame::new((b % 46) as u8, word(3), 0, body);
            return way.arrived.push_back(frame);
        }
        let index = b as usize % count;
        let length = way.arrived[index].body.len();
        let frame = &mut way.arrived[index];
        match c % 8 {
            1 => frame.header ^= 1 << (d % 64),
            2 => frame.body.truncate(d as usize % (length + 1)),
            3 if length > 0 => frame.body[d as usize % length.min(64)] ^= (d >> 16) as u8,
            4 => frame.id = (d % 46) as u8,
            5 => {
                let again = Frame::new(frame.id, frame.header, frame.prefix, frame.body.clone());
                way.arrived.push_back(again);
            }
            6 => drop(way.arrived.remove(index)),
            _ => way.arrived.swap(index, d as usize % count),
        }
    }

    fn fault(&mut self, fault: Fault, [a, b]: [u32; 2]) {
        match fault {
            Fault::Close | Fault::Abort | Fault::Leave => {
                let Some((conn, side, endpoint)) = self.end_of(a) else {
                    return;
                };
                self.bed.conns[conn].is_faulty = true;
                let node = self.bed.conns[conn].nodes[side];
                match fault {
                    Fault::Close => {
                        let task = Task::boxed(What::Close, node, Some(conn), async move {
                            End::Unit(endpoint.close().await)
                        });
                        self.push(task, b & 1 == 0);
                    }
                    Fault::Abort => endpoint.abort(),
                    _ => {
                        let found = &mut self.bed.conns[conn];
                        found.ends[side] = None;
                        found.remotes[side] = None;
                        found.counters[side] = None;
                    }
                }
            }
            Fault::Cut => {
                let (conn, _) = self.way(a);
                let conn = &mut self.bed.conns[conn];
                conn.is_faulty = true;
                let lost = [b & 1 != 0, b & 2 != 0];
                let kind = [ErrorKind::ConnectionReset, ErrorKind::PeerDied][(b >> 2) as usize % 2];
                conn.wire.lock().cut(kind, lost);
            }
            Fault::Kill => {
                if let Some(node) = self.alive(a) {
                    self.kill(node, b & 1 != 0);
                }
            }
            Fault::Shutdown => {
                if let Some(node) = self.alive(a) {
                    self.shut_down(node);
                }
            }
        }
    }

    pub(crate) fn kill(&mut self, node: usize, lost: bool) {
        self.is_spent = true;
        for conn in &mut self.bed.conns {
            if conn.nodes.contains(&node) {
                conn.is_faulty = true;
                conn.wire.lock().cut(ErrorKind::PeerDied, [lost; 2]);
            }
        }
        // It is driven no more, and its futures are polled no more.
        self.bed.nodes[node].is_over = true;
        let gone: Vec<_> = (0..self.tasks.len())
            .rev()
            .filter(|index| self.tasks[*index].node == node)
            .collect();
        for index in gone {
            let task = self.tasks.swap_remove(index);
            self.dropped(task);
        }
    }

    pub(crate) fn shut_down(&mut self, node: usize) {
        self.is_spent = true;
        for conn in &mut self.bed.conns {
            conn.is_faulty |= conn.nodes.contains(&node);
        }
        let worker = self.bed.nodes[node].worker.clone();
        let task = Task::boxed(What::Shutdown, node, None, async move {
            End::Unit(worker.shutdown(std::time::Duration::from_secs(3600)).await)
        });
        self.push(task, true);
    }

    // --- The end.

    /// Everything that can happen happens: all messages arrive, all workers pass, all who are woken are polled.
    pub(crate) fn rest(&mut self) {
        for _ in 0..ROUNDS {
            let mut moved = 0;
            for conn in 0..self.bed.conns.len() {
                for side in 0..2 {
                    {
                        let mut wire = self.bed.conns[conn].wire.lock();
                        let way = &mut wire.ways[side];
                        (way.room, way.flow) = (usize::MAX, usize::MAX);
                    }
                    moved += self.arrive(conn, side, usize::MAX);
                }
            }
            for node in &self.bed.nodes {
                if !node.is_over {
                    moved += node.worker.progress();
                }
            }
            moved += self.poll_woken();
            if moved == 0 {
                return self.find_lost_wakes();
            }
        }
        panic!("it never comes to rest");
    }

    fn find_lost_wakes(&mut self) {
        let mut index = 0;
        while index < self.tasks.len() {
            let task = &mut self.tasks[index];
            let what = task.what;
            if let Poll::Ready(end) = task.poll() {
                panic!("{what:?} is ready, and nobody has woken it, a lost wake-up: {end:?}");
            }
            index += 1;
        }
    }

    /// Words and counters were raised by others than programs.
    pub(crate) fn forget_words(&mut self) {
        self.begin();
    }

    /// Begins a program.
    fn begin(&mut self) {
        let word = |node: &super::bed::Node| {
            let mut word = [0; 8];
            node.region.read_at(WORD, &mut word).expect("within");
            [u64::from_ne_bytes(word), node.counter.value()]
        };
        self.bases = self.bed.nodes.iter().map(word).collect();
        self.shelf = Shelf::default();
        self.guard = Guard::default();
    }

    /// What is left over is received: it is there, whole.
    fn drain(&mut self) -> bool {
        let mut any = false;
        for node in 0..self.bed.nodes.len() {
            if self.bed.nodes[node].is_over {
                continue;
            }
            let worker = self.bed.nodes[node].worker.clone();
            while worker.tag_probe(Tag(0), Mask(0)).is_some() {
                self.take(node, 0x100, true);
                any = true;
            }
            for id in 0..IDS {
                let inbox = self.bed.nodes[node].inboxes[id].clone();
                while let Some(message) = inbox.borrow_mut().as_mut().and_then(AmInbox::try_recv) {
                    any = true;
                    let (shelf, guard) = (self.shelf.clone(), self.guard.clone());
                    let arrived = Self::arrived(shelf, guard, node, message, 4);
                    let task = Task::boxed(What::Inbox, node, None, arrived);
                    self.push(task, true);
                }
            }
        }
        for conn in 0..self.bed.conns.len() {
            for side in 0..2 {
                let node = self.bed.conns[conn].nodes[side];
                if let Some(endpoint) = self.bed.conns[conn].ends[side].clone()
                    && !self.bed.nodes[node].is_over
                {
                    loop {
                        let waker = std::task::Waker::noop();
                        let mut cx = std::task::Context::from_waker(waker);
                        let mut accept = endpoint.accept_stream();
                        let accept = std::pin::Pin::new(&mut accept);
                        let Poll::Ready(Ok(stream)) = accept.poll(&mut cx) else {
                            break;
                        };
                        any = true;
                        let read = Self::read(self.shelf.clone(), conn, stream, 0x101_0000);
                        let task = Task::boxed(What::Read, node, Some(conn), read);
                        self.push(task, true);
                    }
                }
            }
        }
        any
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            self.rest();
            if !self.drain() {
                return;
            }
        }
        panic!("there is always more");
    }

    /// Whether a task may wait for ever.
    fn may_wait(&self, task: &Task) -> bool {
        let is_tied = task.conn.is_some_and(|conn| {
            let conn = &self.bed.conns[conn];
            conn.is_faulty && conn.wire.lock().is_gone()
        });
        match task.what {
            What::Recv(_) | What::Claim(_) | What::Inbox | What::Wait => true,
            What::Read => !is_tied,
            // Its stream goes to where nobody accepts any more, or what it waits for was changed.
            _ => task.conn.is_some_and(|conn| {
                let conn = &self.bed.conns[conn];
                conn.is_hostile || conn.is_faulty && !conn.wire.lock().is_gone()
            }),
        }
    }

    fn end(&mut self) {
        self.programs += 1;
        self.settle();
        // Whoever has changed messages is over, so that all ends.
        if self.bed.conns.iter().any(|conn| conn.is_faulty) {
            for conn in &self.bed.conns {
                if conn.is_hostile {
                    conn.wire.lock().cut(ErrorKind::ConnectionReset, [true; 2]);
                }
            }
            self.settle();
        }
        for task in &self.tasks {
            assert!(self.may_wait(task), "{:?} never ends", task.what);
        }
        // Who waits for what nobody sends is called off, or dropped.
        let mut called_off = false;
        while let Some(task) = self.tasks.pop() {
            called_off = !called_off;
            self.tasks.push(task);
            match called_off {
                true => {
                    self.call_off(self.tasks.len() - 1);
                    self.rest();
                }
                false => {
                    let task = self.tasks.swap_remove(self.tasks.len() - 1);
                    self.dropped(task);
                }
            }
        }
        self.settle();
        self.check();
        if self.bed.conns.iter().any(|conn| conn.is_faulty) {
            self.end_connections();
        }
        self.begin();
    }

    fn check(&mut self) {
        let faulty: Vec<_> = self.bed.conns.iter().map(|conn| conn.is_faulty).collect();
        let over: Vec<_> = self.bed.nodes.iter().map(|node| node.is_over).collect();
        let is_hostile = self.shelf.borrow().is_hostile;
        let puts = self.shelf.borrow().puts.len();
        for number in 0..puts {
            let (node, slot, must, torn) = {
                let books = self.shelf.borrow();
                let put = &books.puts[number];
                let (must, may) = put.fate.bounds(faulty[put.conn]);
                (put.node, put.at / SLOT, put.has_slot && must, put.has_slot && may && !must)
            };
            let conn = self.shelf.borrow().puts[number].conn;
            if must && !faulty[conn] {
                self.look_at_put(number);
            } else if must || torn {
                self.mend(node, slot);
            }
        }
        if is_hostile {
            for node in 0..self.bed.nodes.len() {
                (0..SLOTS).for_each(|slot| self.mend(node, slot));
            }
        }
        for (node, found) in self.bed.nodes.iter().enumerate() {
            for slot in 0..SLOTS {
                self.look_at_slot(node, slot);
            }
            if !is_hostile {
                self.check_words(node, &faulty);
            }
            if found.is_over {
                continue;
            }
            assert_eq!(found.worker.in_flight(), 0, "operations are left at node {node}");
            let held = found.worker.metrics().held;
            let all = [
                held.unexpected_bytes,
                held.unexpected_messages,
                held.unaccepted_streams,
                held.requests,
            ];
            assert_eq!(all, [0; 4], "node {node} keeps something: {held:?}");
        }
        let books = self.shelf.borrow();
        let to = |message: &Message| self.bed.conns[message.conn].nodes[1 - message.side];
        if !is_hostile {
            books.check_order();
            books.check_messages(&faulty, &over, to);
        }
        drop(books);
        for busy in &mut self.busy {
            *busy = [false; SLOTS];
        }
        // What a killed worker had is its own still.
        if !over.contains(&true) {
            assert!(!self.guard.is_lent(), "a buffer has not come back");
        }
        self.guard.check();
    }

    fn mend(&mut self, node: usize, slot: usize) {
        let node = &self.bed.nodes[node];
        let from = slot * SLOT;
        let shadow = &node.shadow[from..from + SLOT];
        node.region.write_at(from, shadow).expect("within");
    }

    fn check_words(&self, node: usize, faulty: &[bool]) {
        let books = self.shelf.borrow();
        let mut word = [0; 8];
        let found = &self.bed.nodes[node];
        found.region.read_at(WORD, &mut word).expect("within");
        let values = [u64::from_ne_bytes(word), found.counter.value()];
        for counter in [false, true] {
            let raises = books.raises.iter();
            let raises = raises.filter(|raise| raise.node == node && raise.counter == counter);
            let bounds = raises.map(|raise| raise.fate.bounds(faulty[raise.conn]));
            let puts = books.puts.iter();
            let puts = puts.filter(|put| counter && put.signals && put.node == node);
            let puts = puts.map(|put| match put.fate.bounds(faulty[put.conn]) {
                // Complete at its source alone.
                (true, may) if put.local && faulty[put.conn] => (false, may),
                bounds => bounds,
            });
            let (mut least, mut most) = (0, 0);
            for (must, may) in bounds.chain(puts) {
                least += u64::from(must);
                most += u64::from(may);
            }
            let grown = values[usize::from(counter)] - self.bases[node][usize::from(counter)];
            // A signal is over before the peer has it.
            let is_known = !counter || !faulty.contains(&true);
            assert!(
                (grown >= least || !is_known) && grown <= most,
                "node {node} was raised {grown} times, not {least} to {most} (counter: {counter})"
            );
        }
        let olds = books.raises.iter();
        let mut olds: Vec<_> = olds.filter(|raise| raise.node == node).filter_map(|raise| raise.old).collect();
        let count = olds.len();
        olds.sort_unstable();
        olds.dedup();
        assert_eq!(olds.len(), count, "two atomic operations saw the same value");
    }

    /// Windows are whole: as much goes unasked as no receiver has to answer for.
    pub(crate) fn look_at_windows(&mut self, roll: u32) {
        /// With its 64 bytes, and what may be owed and is kept for short ones, these are the window of 1 MiB.
        const MESSAGES: usize = 145;
        const LENGTH: usize = 4999;
        let runtime = self.bed.runtime.clone();
        let _inside = runtime.enter();
        let (conn, side) = self.way(roll);
        for _ in 0..MESSAGES {
            self.send(roll, 0, LENGTH, 0xff1);
            self.poll(self.tasks.len() - 1);
            assert!(self.tasks.is_empty(), "conn {conn}, side {side}: the window was not given back");
        }
        let id = roll as usize / 16 % IDS;
        for _ in 0..4 {
            self.am(roll, id, 100, 0xff2);
            assert!(self.tasks.is_empty(), "conn {conn}, side {side}: credits were not given back");
        }
        self.end();
        self.programs -= 1;
    }

    /// All connections are over, and nothing is left of them.
    pub(crate) fn end_connections(&mut self) {
        let runtime = self.bed.runtime.clone();
        let _inside = runtime.enter();
        for conn in &mut self.bed.conns {
            conn.is_faulty = true;
            (conn.ends, conn.remotes, conn.counters) = Default::default();
        }
        self.rest();
        let wires: Vec<_> = self.bed.conns.drain(..).map(|conn| (conn.nodes, conn.wire)).collect();
        for (at, node) in self.bed.nodes.iter().enumerate() {
            if node.is_over {
                continue;
            }
            let metrics = node.worker.metrics();
            let lanes: usize = metrics.lanes.iter().map(|lane| lane.connections).sum();
            let held = (metrics.held.connections, metrics.held.sources);
            assert_eq!((lanes, held), (0, (0, 0)), "node {at} keeps a connection");
            assert_eq!(node.worker.in_flight(), 0, "operations are left at node {at}");
        }
        for (nodes, wire) in wires {
            let is_over = nodes.iter().any(|node| self.bed.nodes[*node].is_over);
            assert!(is_over || wire.lock().is_gone(), "a link is kept");
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(said) = &self.said
        {
            eprintln!("{}", said.join("\n"));
        }
    }
}
