//! What programs begin.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{
    ActiveMessage, AmInbox, BufferMut, ByteStream, Endpoint, Error, ErrorKind, Mask, Matched,
    OpError, Priority, Received, Tag,
};

use crate::{
    bed::{IDS, SLOT, SLOTS, Slot, WORD},
    books::{Fate, Get, HEAD, Message, Put, Raise, Receive, Shelf, Stream, payload},
    bytes::all_are,
    guarded::{Guard, bytes},
    program::{Act, length},
    task::{End, Fut, Task, What},
};

use super::Run;

const CLASSES: u64 = 3;

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
    /// An open end of a connection.
    pub(super) fn end_of(&self, roll: u32) -> Option<(usize, usize, Endpoint)> {
        let (conn, side) = self.way(roll);
        let found = &self.bed.conns[conn];
        if self.bed.nodes[found.nodes[side]].is_over {
            return None;
        }
        Some((conn, side, found.ends[side].clone()?))
    }

    pub(super) fn alive(&self, roll: u32) -> Option<usize> {
        let node = roll as usize % self.bed.nodes.len();
        (!self.bed.nodes[node].is_over).then_some(node)
    }

    pub(super) fn act(&mut self, act: Act, [a, b, c, d]: [u32; 4]) {
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
                    let task = Task::boxed(
                        What::Flush(number, conn, side),
                        node,
                        Some(conn),
                        async move {
                            End::Unit(match d & 2 {
                                0 => endpoint.flush().await,
                                _ => endpoint.fence().await,
                            })
                        },
                    );
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
                        assert!(
                            value.as_ref().is_ok_and(|value| *value >= at_least) || value.is_err()
                        );
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

    pub(crate) fn message(
        &mut self,
        conn: usize,
        side: usize,
        am: Option<usize>,
        tag: Option<u64>,
        length: usize,
    ) -> usize {
        let books = &mut *self.shelf.borrow_mut();
        let number = books.messages.len();
        let (class, exact) = (
            tag.unwrap_or(0) & 0xff,
            tag.is_some_and(|tag| tag & 0x100 != 0),
        );
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
            is_called_off: false,
        });
        number
    }

    pub(super) fn send(&mut self, end: u32, class: u32, length: usize, how: u32) {
        let Some((conn, side, endpoint)) = self.end_of(end) else {
            return;
        };
        let exact = u64::from(class & 0x100);
        let tag = (u64::from(class & 0xff) % CLASSES) | exact;
        let number = self.message(conn, side, None, Some(tag), length);
        let (sync, priority) = (how & 0x30 == 0, how & 0x1c0 == 0);
        let (tag, bytes) = {
            let message = &mut self.shelf.borrow_mut().messages[number];
            (message.sync, message.priority) = (sync, priority);
            (message.tag, payload(number, message.tag, message.length))
        };
        let source = self.guard.source(&bytes);
        let node = self.bed.conns[conn].nodes[side];
        let priority = if priority {
            Priority::High
        } else {
            Priority::Normal
        };
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

    pub(super) fn receive(&mut self, node: usize, class: u32, room: u32) -> usize {
        let books = &mut *self.shelf.borrow_mut();
        let number = books.receives.len();
        let (tag, mask) = match class & 0x300 {
            0 => (u64::from(class & 0xff) % CLASSES, u64::MAX),
            0x100 => (0, 0),
            _ => (u64::from(class & 0xff) % CLASSES, 0xff),
        };
        let room = if room.is_multiple_of(5) {
            length(room >> 8)
        } else {
            20_000
        };
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
            let op = worker.tag_recv(Tag(tag), buffer).mask(Mask(mask)).post();
            let task = Task::new(What::Recv(number), node, None, Fut::Recv(op));
            return self.push(task, at_once);
        }
        let task = Task::boxed(What::Recv(number), node, None, async move {
            got(worker.tag_recv(Tag(tag), buffer).mask(Mask(mask)).await)
        });
        self.push(task, at_once);
    }

    pub(super) fn claim(&mut self, node: usize, number: usize, takes: bool, at_once: bool) {
        let (tag, mask, room) = {
            let receive = &self.shelf.borrow().receives[number];
            (receive.tag, receive.mask, receive.room)
        };
        let worker = self.bed.nodes[node].worker.clone();
        let buffer = self.guard.target(room);
        let task = Task::boxed(What::Claim(number), node, None, async move {
            match worker.tag_matched(Tag(tag)).mask(Mask(mask)).await {
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
    pub(super) fn take(&mut self, node: usize, class: u32, takes: bool) {
        let receive = self.receive(node, class, 1);
        let (tag, mask) = {
            let books = self.shelf.borrow();
            let receive = &books.receives[receive];
            (Tag(receive.tag), Mask(receive.mask))
        };
        let worker = self.bed.nodes[node].worker.clone();
        let probed = worker.tag_probe(tag, mask);
        let taken = worker.tag_take(tag, mask);
        if let Some(probed) = probed {
            let taken = taken.as_ref().map(Matched::info);
            let is_there = taken.as_ref() == Some(&probed);
            assert!(
                is_there || self.may_vanish(node, probed.tag),
                "probed {probed:?}, and another one taken: {taken:?}"
            );
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

    /// Whether a message that is announced at a node may be called off, or lost, by what arrives next.
    fn may_vanish(&self, node: usize, tag: Tag) -> bool {
        let books = self.shelf.borrow();
        let mut conns = self.bed.conns.iter();
        let mut messages = books.messages.iter();
        books.is_hostile
            || conns.any(|conn| conn.is_faulty && conn.nodes.contains(&node))
            || messages.any(|message| message.is_called_off && message.tag == tag.0)
    }

    pub(super) fn put(&mut self, end: u32, slot: usize, length: usize, how: u32) {
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
        let source = self.guard.source(bytes(number as u64 + 1000, length));
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

    pub(super) fn get(&mut self, end: u32, slot: usize, length: usize, at_once: bool) {
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
        let region = self.bed.conns[conn].remotes[side]
            .clone()
            .expect("imported");
        let region = region.slice(slot * SLOT..slot * SLOT + length);
        let task = Task::boxed(What::Get(number), node, Some(conn), async move {
            End::Buffer(endpoint.get(region, buffer).await)
        });
        self.push(task, at_once);
    }

    pub(super) fn raise(&mut self, conn: usize, side: usize, counter: bool) -> usize {
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

    pub(super) fn atomic(&mut self, end: u32, how: u32) {
        let Some((conn, side, _)) = self.end_of(end) else {
            return;
        };
        let number = self.raise(conn, side, false);
        let node = self.bed.conns[conn].nodes[side];
        let region = self.bed.conns[conn].remotes[side]
            .clone()
            .expect("imported");
        let what = What::Atomic(number);
        if how & 2 == 0 {
            match region.fetch_add(WORD, 1_u64).post() {
                Ok(op) => self.push(
                    Task::new(what, node, Some(conn), Fut::Word(op)),
                    how & 1 == 0,
                ),
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
    pub(super) fn not_posted(&self, conn: usize, error: &Error) {
        let expected = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Rejected);
        assert!(
            expected || self.bed.conns[conn].is_faulty,
            "not posted: {error}"
        );
    }

    pub(super) fn am(&mut self, end: u32, id: usize, length: usize, how: u32) {
        let Some((conn, side, endpoint)) = self.end_of(end) else {
            return;
        };
        let number = self.message(conn, side, Some(id), None, length);
        let node = self.bed.conns[conn].nodes[side];
        let source = self.guard.source(bytes(number as u64 + 1, length));
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

    pub(super) fn inbox(&mut self, node: usize, id: usize, how: u32, at_once: bool) {
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
    pub(super) async fn arrived(
        shelf: Shelf,
        guard: Guard,
        node: usize,
        message: ActiveMessage,
        how: u32,
    ) -> End {
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
            assert_eq!(
                (known.am, known.length),
                (Some(usize::from(message.id().0)), message.len())
            );
            known.is_refused |= how % 8 < 2;
            known.length
        };
        let books = shelf.clone();
        let whole = |found: &[u8]| {
            let is_whole = found == bytes(number as u64 + 1, length);
            assert!(is_whole || books.borrow().is_hostile, "other bytes");
        };
        let failed =
            |error: Error| End::Over((error.kind() != ErrorKind::Canceled).then_some(error));
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
                    assert!(all_are(&found[received.len..], 0));
                }
                Err(error) => return failed(error.into_parts().0),
            },
        }
        End::Over(None)
    }

    pub(super) fn open(&mut self, end: u32, total: usize, how: u32, at_once: bool) {
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
        // Not so many pieces that it never comes to rest.
        let piece = (1 + how as usize % 7000).max(total / 4000);
        let write = async move {
            let mut stream = endpoint.stream().await.map_err(std::io::Error::other)?;
            stream.write_all(&(number as u64).to_le_bytes()).await?;
            shelf.borrow_mut().streams[number].written = HEAD;
            let all = bytes(number as u64, total);
            for part in all.chunks(piece) {
                match how & 0x10_0000 {
                    0 => stream.write_all(part).await?,
                    _ => stream
                        .write_buffer(part.to_vec())
                        .await
                        .map_err(std::io::Error::other)?,
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
                Err(error) if !reader_left => Some(Error::io("a write", error)),
                _ => None,
            })
        });
        self.push(task, at_once);
    }

    async fn accept(shelf: Shelf, conn: usize, endpoint: Endpoint, how: u32) -> End {
        match endpoint.accept_stream().await {
            Ok(stream) => Self::read(shelf, conn, stream, how).await,
            Err(error) => End::Over(Some(error)),
        }
    }

    /// Reads a stream to its end, or lets go of it before.
    pub(super) async fn read(shelf: Shelf, conn: usize, mut stream: ByteStream, how: u32) -> End {
        // Of what was read: its first bytes, and how much.
        let (mut head, mut found) = (Vec::new(), 0);
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
            // Else it was reset, or its connection ended.
            let Ok(count) = stream.read(&mut buffer).await else {
                return End::Over(None);
            };
            let (first, piece) = buffer[..count].split_at(count.min(HEAD - head.len()));
            head.extend_from_slice(first);
            let at = (found + first.len()).saturating_sub(HEAD);
            found += count;
            let books = &mut *shelf.borrow_mut();
            let number = head.first_chunk::<HEAD>();
            let number = number.map(|number| u64::from_le_bytes(*number) as usize);
            let number = number.filter(|number| *number < books.streams.len());
            if let Some(number) = number.filter(|_| !books.is_hostile) {
                leaving.2 = Some(number);
                let stream = &mut books.streams[number];
                let is_whole = bytes(number as u64, stream.total)[at..].starts_with(piece);
                assert!(is_whole, "other bytes in {stream:?}");
                if count == 0 {
                    stream.is_read = true;
                    assert!(found >= stream.written, "{found} of {stream:?}");
                    assert!(!stream.is_finished || found == HEAD + stream.total);
                }
            }
            if count == 0 {
                return End::Over(None);
            }
            if leaves.is_some_and(|leaves| found >= leaves) {
                return End::Over(None);
            }
        }
    }
}
