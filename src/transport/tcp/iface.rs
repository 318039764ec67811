//! The receiving half of all of a worker's connections.
//!
//! A connection with recent traffic is *hot* and read in every pass, without asking the kernel which one is readable. All others are
//! read once the worker's poll has said that they are. Polling is edge-triggered: `readable` is cleared by nothing but a read that
//! found nothing, or less than it asked for while the poll has not said anything since: what comes then makes an edge, and after such a read
//! the next one is left out.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::RawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use mio::{Interest, unix::SourceFd};
use slab::Slab;

use super::{
    connector::Established,
    link::TcpLink,
    options::NAME,
    reader::{BUFFER, End, Reader, Step},
    socket::Socket,
};
use crate::{
    ErrorKind,
    error::{Error, Result},
    transport::{Connected, Interface, Link, Registry, Sink},
    types::LinkId,
};

/// Most hot connections.
const HOT: usize = 4;
/// Passes without an arrival after which a hot connection is so no longer.
const COLD: u8 = 64;
/// For how long at most a hot connection is left alone in the pass after a read that took all: an answer takes longer. Who only sends, and looks
/// when the window is empty, would wait in vain for what has come long ago.
const REST: Duration = Duration::from_micros(4);
/// Every how many passes a hot connection that waits for room tries again without being told.
const RETRY: u8 = 16;

/// The interface.
#[derive(Debug)]
pub(super) struct TcpInterface {
    /// By token.
    connections: Slab<Connection>,
    tokens: HashMap<LinkId, usize>,
    hot: Vec<usize>,
    /// Connections, none of them hot, with something to do. May hold tokens that are out of date.
    ready: VecDeque<usize>,
    buffer: Box<[u8; BUFFER]>,
    registry: Option<Registry>,
    pass: u8,
}

#[derive(Debug)]
struct Connection {
    socket: Arc<Socket>,
    reader: Reader,
    /// Something may be there to read.
    readable: bool,
    /// The poll has said so, and tells once of the last bytes and of the end behind them: to be read until nothing is found.
    told: bool,
    /// The socket may have room again.
    writable: bool,
    /// In `ready`.
    listed: bool,
    hot: bool,
    /// Reads in a row that found nothing.
    misses: u8,
    /// When the last read took all that was there: right after it, it would find nothing.
    rests: Option<Instant>,
}

impl TcpInterface {
    /// Without connections.
    pub(super) fn new() -> Self {
        Self {
            connections: Slab::new(),
            tokens: HashMap::new(),
            hot: Vec::with_capacity(HOT),
            ready: VecDeque::new(),
            buffer: Box::new([0; BUFFER]),
            registry: None,
            pass: 0,
        }
    }

    /// Does what is to do for one connection. Returns how many things happened.
    fn serve(&mut self, token: usize, budget: usize, sink: &mut dyn Sink) -> usize {
        let Some(connection) = self.connections.get_mut(token) else {
            return 0;
        };
        if connection.socket.dropped() {
            self.remove(token);
            return 0;
        }
        let mut happened = 0;
        let retry = connection.hot && self.pass.is_multiple_of(RETRY);
        if (connection.writable || retry) && connection.socket.waits() {
            connection.socket.set_waits(false);
            sink.writable(connection.reader.id());
            happened += 1;
        }
        connection.writable = false;
        let rested = connection.rests.take();
        if !connection.readable
            && (!connection.hot || rested.is_some_and(|since| since.elapsed() < REST))
        {
            return happened;
        }
        match connection
            .reader
            .step(&connection.socket, &mut self.buffer, budget, sink)
        {
            Ok(Step::Moved(things, short)) => {
                happened += things;
                let all = short && !connection.told;
                connection.readable = !all;
                connection.rests = all.then(Instant::now);
                connection.misses = 0;
                if !connection.hot && self.hot.len() < HOT {
                    connection.hot = true;
                    self.hot.push(token);
                }
            }
            Ok(Step::Drained) => {
                connection.readable = false;
                connection.told = false;
                connection.rests = None;
                connection.misses = connection.misses.saturating_add(1);
                if connection.hot && connection.misses >= COLD {
                    connection.hot = false;
                    self.hot.retain(|&hot| hot != token);
                }
            }
            Err(end) => {
                happened += 1;
                self.end(token, end, sink);
            }
        }
        happened
    }

    #[cold]
    fn end(&mut self, token: usize, end: End, sink: &mut dyn Sink) {
        let Some(connection) = self.remove(token) else {
            return;
        };
        if let End::Failed(error) = end {
            sink.failed(connection.reader.id(), connection.socket.named(error));
        }
    }

    /// Takes a connection out and closes it.
    fn remove(&mut self, token: usize) -> Option<Connection> {
        let connection = self.connections.try_remove(token)?;
        self.tokens.remove(&connection.reader.id());
        self.hot.retain(|&hot| hot != token);
        if let Some(registry) = &self.registry {
            registry.deregister(&mut SourceFd(&connection.socket.fd()));
        }
        connection.socket.set_over();
        Some(connection)
    }

    fn list(&mut self, token: usize) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.hot
            && !connection.listed
            && (connection.readable || connection.writable)
        {
            connection.listed = true;
            self.ready.push_back(token);
        }
    }
}

impl Interface for TcpInterface {
    fn attach(&mut self, id: LinkId, connected: Connected) -> Result<Box<dyn Link>> {
        let Established {
            socket,
            format,
            fragment,
        } = *connected.of::<Established>(NAME)?;
        if self.tokens.contains_key(&id) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a link is attached under this id already",
            ));
        }
        let socket = Arc::new(socket);
        let entry = self.connections.vacant_entry();
        let token = entry.key();
        if let Some(registry) = &self.registry {
            register(registry, socket.fd(), token)?;
        }
        entry.insert(Connection {
            socket: Arc::clone(&socket),
            reader: Reader::new(id, format),
            readable: true,
            writable: false,
            listed: false,
            hot: false,
            told: false,
            misses: 0,
            rests: None,
        });
        self.tokens.insert(id, token);
        self.list(token);
        Ok(Box::new(TcpLink::new(id, socket, format, fragment)))
    }

    fn detach(&mut self, id: LinkId) {
        if let Some(&token) = self.tokens.get(&id) {
            self.remove(token);
        }
    }

    fn register(&mut self, registry: Registry) -> Result<()> {
        for (token, connection) in &self.connections {
            register(&registry, connection.socket.fd(), token)?;
        }
        self.registry = Some(registry);
        Ok(())
    }

    fn ready(&mut self, token: usize, readable: bool, writable: bool) {
        if let Some(connection) = self.connections.get_mut(token) {
            connection.readable |= readable;
            connection.told |= readable;
            connection.writable |= writable && connection.socket.waits();
            self.list(token);
        }
    }

    fn progress(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        self.pass = self.pass.wrapping_add(1);
        let mut happened = 0;
        // Backwards, because serving one may take it out; who moves into its place was served already.
        for index in (0..self.hot.len()).rev() {
            if let Some(&token) = self.hot.get(index) {
                happened += self.serve(token, budget, sink);
                self.list(token);
            }
        }
        while happened < budget
            && let Some(token) = self.ready.pop_front()
        {
            if let Some(connection) = self.connections.get_mut(token) {
                connection.listed = false;
                happened += self.serve(token, budget - happened, sink);
                self.list(token);
            }
        }
        happened
    }

    fn arm(&mut self) -> bool {
        // The sockets are registered all the time; it is enough that nothing is left over from before the last edge.
        self.ready.is_empty()
            && self.hot.iter().all(|&token| {
                self.connections
                    .get(token)
                    .is_none_or(|connection| !connection.readable && !connection.writable)
            })
    }

    fn disarm(&mut self) {}

    fn looks_cost(&self) -> bool {
        !self.hot.is_empty()
    }
}

fn register(registry: &Registry, fd: RawFd, token: usize) -> Result<()> {
    registry.register(
        &mut SourceFd(&fd),
        token,
        Interest::READABLE | Interest::WRITABLE,
    )
}
