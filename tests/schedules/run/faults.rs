//! What goes wrong: messages that are changed on their way, links that break, ends that go, workers that die.

use wharf::ErrorKind;

use crate::{
    program::Fault,
    task::{End, Task, What},
    wire::Frame,
};

use super::Run;

impl Run {
    pub(super) fn twist(&mut self, [a, b, c, d]: [u32; 4]) {
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
            let word =
                |shift: u32| u64::from(b.rotate_left(shift)) << (d % 33) | u64::from(d & 0xff);
            let body = (0..c as usize / 8 % 80)
                .map(|at| (b >> (at % 25)) as u8)
                .collect();
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

    pub(super) fn fault(&mut self, fault: Fault, [a, b]: [u32; 2]) {
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
}
