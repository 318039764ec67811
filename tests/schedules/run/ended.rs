//! How tasks ended: what that says of what they did is put into the books, and what it says of memory is looked at.

use wharf::{BufferMut, Error, ErrorKind, OpError, Received};

use crate::{
    bed::{IDS, SLOT},
    books::{Books, Fate, payload},
    bytes::all_are,
    guarded::bytes,
    task::{End, Task, What},
};

use super::Run;

impl Run {
    #[track_caller]
    pub(super) fn failed(&self, task: &Task, error: &Error) -> Fate {
        if error.kind() == ErrorKind::Canceled {
            return Fate::Never;
        }
        assert!(self.may_fail(task), "{:?} failed: {error}", task.what);
        Fate::Open
    }

    pub(super) fn ended(&mut self, task: Task, end: End) {
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
                    assert!(
                        is_met,
                        "a synchronous send that nobody received: {message:?}"
                    );
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

    pub(super) fn received(
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
        assert!(
            receive.matches(received.tag.0),
            "{receive:?} got {:?}",
            received.tag
        );
        let buffer = received.buffer.as_slice().expect("host memory");
        let (front, behind) = buffer.split_at(received.len);
        assert!(all_are(behind, 0), "written behind the message");
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
        assert!(
            front == payload(message, found.tag, found.length),
            "other bytes: {found:?}"
        );
        let conn = &self.bed.conns[found.conn];
        assert_eq!(conn.nodes[1 - found.side], task.node);
        assert_eq!(conn.ids[1 - found.side], received.from);
    }

    pub(super) fn look_at_put(&mut self, number: usize) {
        let (node, at) = {
            let books = self.shelf.borrow();
            let put = &books.puts[number];
            let shadow = &mut self.bed.nodes[put.node].shadow;
            shadow[put.at..put.at + put.length].copy_from_slice(bytes(put.serial, put.length));
            (put.node, put.at)
        };
        if !self.is_in_reach(node) {
            self.look_at_slot(node, at / SLOT);
        }
    }

    /// Whether what a node has exposed may have been written by messages that were changed: each of its peers may write all of it.
    fn is_in_reach(&self, node: usize) -> bool {
        let mut conns = self.bed.conns.iter();
        conns.any(|conn| conn.is_hostile && conn.nodes.contains(&node))
    }

    #[track_caller]
    pub(super) fn look_at_slot(&self, node: usize, slot: usize) {
        let node = &self.bed.nodes[node];
        let mut found = vec![0; SLOT];
        let from = slot * SLOT;
        node.region.read_at(from, &mut found).expect("within");
        let wanted = &node.shadow[from..from + SLOT];
        if found != wanted {
            let at = found
                .iter()
                .zip(wanted)
                .position(|(found, wanted)| found != wanted);
            panic!("slot {slot} of exposed memory is not what was put there, from {at:?} on");
        }
    }

    pub(super) fn free_slot(&mut self, number: usize) {
        let put = &mut self.shelf.borrow_mut().puts[number];
        put.has_slot = false;
        self.busy[put.node][put.at / SLOT] = false;
    }

    pub(super) fn free_get(&mut self, number: usize) {
        let get = &self.shelf.borrow().gets[number];
        self.busy[get.node][get.slot] = false;
    }
}
