//! When all that can happen has happened: what must hold then, and what must be left when a connection is over, which is nothing.

use std::{future::Future, task::Poll};

use wharf::{AmInbox, ErrorKind, Mask, Tag};

use crate::{
    bed::{IDS, Node, SLOT, SLOTS, WORD},
    books::{Message, Shelf},
    guarded::Guard,
    task::{Task, What},
};

use super::Run;

/// Rounds after which all that can happen has.
const ROUNDS: usize = 20_000;

impl Run {
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
            // A look makes a pass too, and no system call.
            for node in &self.bed.nodes {
                if !node.is_over {
                    let _ = node.worker.in_flight();
                }
            }
            moved += self.poll_woken();
            if moved > 0 {
                continue;
            }
            for node in &self.bed.nodes {
                if !node.is_over {
                    moved += node.worker.progress();
                }
            }
            // What the passes before have sent.
            for conn in &self.bed.conns {
                let ways = &conn.wire.lock().ways;
                moved += ways.iter().map(|way| way.flight.len()).sum::<usize>();
            }
            if moved == 0 {
                return self.find_lost_wakes();
            }
        }
        panic!("it never comes to rest");
    }

    pub(super) fn find_lost_wakes(&mut self) {
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
    pub(super) fn begin(&mut self) {
        let word = |node: &Node| {
            let mut word = [0; 8];
            node.region.read_at(WORD, &mut word).expect("within");
            [u64::from_ne_bytes(word), node.counter.value()]
        };
        self.bases = self.bed.nodes.iter().map(word).collect();
        self.shelf = Shelf::default();
        self.guard = Guard::default();
    }

    /// What is left over is received: it is there, whole.
    pub(super) fn drain(&mut self) -> bool {
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

    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            self.rest();
            if !self.drain() {
                return;
            }
        }
        panic!("there is always more");
    }

    /// Whether a task may wait for ever.
    pub(super) fn may_wait(&self, task: &Task) -> bool {
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

    pub(super) fn end(&mut self) {
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

    pub(super) fn check(&mut self) {
        // First: whoever writes where it must not spoils the rest as well.
        self.guard.check();
        let faulty: Vec<_> = self.bed.conns.iter().map(|conn| conn.is_faulty).collect();
        let over: Vec<_> = self.bed.nodes.iter().map(|node| node.is_over).collect();
        let is_hostile = self.shelf.borrow().is_hostile;
        let puts = self.shelf.borrow().puts.len();
        for number in 0..puts {
            let (node, slot, must, torn) = {
                let books = self.shelf.borrow();
                let put = &books.puts[number];
                let (must, may) = put.fate.bounds(faulty[put.conn]);
                (
                    put.node,
                    put.at / SLOT,
                    put.has_slot && must,
                    put.has_slot && may && !must,
                )
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
        let has_puts = puts > 0 || is_hostile;
        for (node, found) in self.bed.nodes.iter().enumerate() {
            if has_puts {
                (0..SLOTS).for_each(|slot| self.look_at_slot(node, slot));
            }
            if !is_hostile {
                self.check_words(node, &faulty);
            }
            if found.is_over {
                continue;
            }
            assert_eq!(
                found.worker.in_flight(),
                0,
                "operations are left at node {node}"
            );
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
        self.seen.add(&books);
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
    }

    pub(super) fn mend(&mut self, node: usize, slot: usize) {
        let node = &self.bed.nodes[node];
        let from = slot * SLOT;
        let shadow = &node.shadow[from..from + SLOT];
        node.region.write_at(from, shadow).expect("within");
    }

    pub(super) fn check_words(&self, node: usize, faulty: &[bool]) {
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
        let mut olds: Vec<_> = olds
            .filter(|raise| raise.node == node)
            .filter_map(|raise| raise.old)
            .collect();
        let count = olds.len();
        olds.sort_unstable();
        olds.dedup();
        assert_eq!(
            olds.len(),
            count,
            "two atomic operations saw the same value"
        );
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
            assert!(
                self.tasks.is_empty(),
                "conn {conn}, side {side}: the window was not given back"
            );
        }
        let id = roll as usize / 16 % IDS;
        for _ in 0..4 {
            self.am(roll, id, 100, 0xff2);
            assert!(
                self.tasks.is_empty(),
                "conn {conn}, side {side}: credits were not given back"
            );
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
        let wires: Vec<_> = self
            .bed
            .conns
            .drain(..)
            .map(|conn| (conn.nodes, conn.wire))
            .collect();
        for (at, node) in self.bed.nodes.iter().enumerate() {
            if node.is_over {
                continue;
            }
            let metrics = node.worker.metrics();
            let open: usize = metrics.transports.iter().map(|one| one.connections).sum();
            let held = (metrics.held.connections, metrics.held.sources);
            assert_eq!((open, held), (0, (0, 0)), "node {at} keeps a connection");
            assert_eq!(
                node.worker.in_flight(),
                0,
                "operations are left at node {at}"
            );
        }
        for (nodes, wire) in wires {
            let is_over = nodes.iter().any(|node| self.bed.nodes[*node].is_over);
            assert!(is_over || wire.lock().is_gone(), "a link is kept");
        }
    }
}
