//! A run: does the steps of programs with the workers of a bed, keeps books of what was begun, and looks whether all of it came to what it had to.
//!
//! What must hold:
//! * each future ends once, and none but those that wait for what nobody sends is left when all that can happen has happened;
//! * a future that waits is polled again only when its waker was called: one that would be ready then, and was not woken, is a lost wake-up;
//! * each message comes once, whole, and in order; what was called off does not come;
//! * nothing is written around a buffer, behind a message, or into memory that came back; exposed memory holds what was put there and nothing else;
//! * in the end no worker holds anything for anybody, no operation is left, and of a connection that is over nothing at all.

mod acts;
mod ended;
mod faults;
mod last;

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    task::Poll,
};

use super::{
    bed::{Bed, SLOTS},
    books::{Fate, Seen, Shelf},
    guarded::Guard,
    program::Step,
    task::{Task, What},
};

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
    pub(crate) seen: Seen,
    /// All that was seen, folded.
    pub(crate) trace: u64,
    pub(crate) said: Option<Vec<String>>,
    /// Something was killed or shut down: the bed is not used again.
    pub(crate) is_spent: bool,
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
            seen: Seen::default(),
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
            self.trace = (self.trace ^ word)
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(17);
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
                let count = if count.is_multiple_of(3) {
                    usize::MAX
                } else {
                    count as usize % 4 + 1
                };
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
            let words = [
                conn as u64,
                side as u64,
                frame.id.into(),
                frame.body.len() as u64,
            ];
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
        let name = if self.said.is_some() {
            format!("{:?}", task.what)
        } else {
            String::new()
        };
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
        if !task.was_posted() {
            return self.dropped(task);
        }
        match task.what {
            What::Recv(receive) | What::Claim(receive) => {
                self.shelf.borrow_mut().receives[receive].is_loose = true;
            }
            What::Send(message) => {
                self.shelf.borrow_mut().messages[message].is_called_off = true;
            }
            _ => {}
        }
        self.tasks.push(task.call_off());
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
