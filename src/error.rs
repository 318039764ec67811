//! What can go wrong, as one type that says what failed, doing what, with whom, over what, and whether to try again.
//!
//! `Display` is one line that says all of it: what was tried, with whom, and why it failed, which is the text of the error behind it (the system's, mostly).
//! As with [`io::Error`], that error is had by [`Error::get_ref`], and [`source`](std::error::Error::source) is what lies beneath it: so a chain that is printed
//! link by link (anyhow's `{:#}`) says nothing twice.

use std::{borrow::Cow, error::Error as StdError, fmt, io, sync::Arc};

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for a caller who branches on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias(
    "ucs_status_t",
    "UCS_ERR_MESSAGE_TRUNCATED",
    "UCS_ERR_CONNECTION_RESET",
    "UCS_ERR_ENDPOINT_TIMEOUT",
    "UCS_ERR_CANCELED",
    "UCS_ERR_NO_RESOURCE",
    "UCS_ERR_REJECTED",
    "UCS_ERR_UNREACHABLE"
))]
pub enum ErrorKind {
    /// The caller asked for something that no state of the world would make right.
    InvalidArgument,
    /// A configuration value is unknown or impossible.
    Configuration,
    /// The message is longer than the receive buffer; the message is gone, the buffer comes back.
    Truncated,
    /// The operation was cancelled by its owner.
    Canceled,
    /// The operation's deadline passed.
    DeadlineExceeded,
    /// No place in the window now; try again after `ready()`.
    WouldBlock,
    /// Nobody listens there.
    ConnectionRefused,
    /// Another listens at that address.
    AddrInUse,
    /// The listener turned the connection down; the message holds its reason.
    Rejected,
    /// The peer closed the connection in order: it closed the endpoint, dropped it, or shut its worker down, and all that it sent before has come.
    ClosedByPeer,
    /// The peer ended the connection at once, by [`Endpoint::abort`](crate::Endpoint::abort): what was under way is lost.
    AbortedByPeer,
    /// The connection broke, or ended without a goodbye: so do those of a process on another host that was killed, which nobody there says.
    ConnectionReset,
    /// The peer's process has ended without a goodbye. Known of peers on this host and in this process namespace, and over shared memory of all.
    PeerDied,
    /// The endpoint, worker or listener was closed on this side.
    Closed,
    /// No transport leads there, or none does any more: the network, or the peer's host, is silent for too long (three
    /// [keepalive](crate::ContextBuilder::keepalive) intervals), or the network device is gone.
    Unreachable,
    /// The shared secret is missing or wrong on one side; or a certificate, or TLS altogether.
    AuthenticationFailed,
    /// The peer speaks no version that this side speaks.
    VersionMismatch,
    /// The peer sent what the protocol does not allow.
    Protocol,
    /// The exposed memory is exposed no longer.
    StaleKey,
    /// The range leaves the exposed memory.
    OutOfBounds,
    /// The descriptor does not grant this access.
    AccessDenied,
    /// The bytes are not a descriptor or address (truncated, altered, or something else).
    Malformed,
    /// A limit of the system or of the configuration was reached.
    Exhausted,
    /// The system refused for want of rights.
    PermissionDenied,
    /// The device, or the program's context on it, has failed; nothing on it goes on, and its memory is gone. A device that its driver resets may come back with the next
    /// allocation on it; where it does not, a new attempt needs a new context, or a new process.
    DeviceLost,
    /// This process is a child made by `fork`; what its parent opened cannot be used here.
    Forked,
    /// This cannot be done here.
    Unsupported,
    /// The system reported an error of another kind; [`Error::get_ref`] has it.
    Io,
}

/// Which operation an error belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Tagged send.
    TagSend,
    /// Tagged receive.
    TagRecv,
    /// Active message, sending.
    AmSend,
    /// Active message, receiving.
    AmRecv,
    /// One-sided write.
    Put,
    /// One-sided read.
    Get,
    /// Atomic operation.
    Atomic,
    /// Raising a counter, or waiting for one.
    Signal,
    /// Flush or fence.
    Flush,
    /// Connection set-up, outgoing.
    Connect,
    /// Connection set-up, incoming.
    Accept,
    /// Listening.
    Listen,
    /// Exposing or importing memory.
    Memory,
    /// Building a context.
    Configure,
    /// Closing.
    Close,
    /// Opening, reading or writing a byte stream.
    Stream,
    /// Copying within the process.
    Copy,
}

impl Operation {
    /// Each at the place that its number says.
    pub(crate) const ALL: [Self; 17] = [
        Self::TagSend,
        Self::TagRecv,
        Self::AmSend,
        Self::AmRecv,
        Self::Put,
        Self::Get,
        Self::Atomic,
        Self::Signal,
        Self::Flush,
        Self::Connect,
        Self::Accept,
        Self::Listen,
        Self::Memory,
        Self::Configure,
        Self::Close,
        Self::Stream,
        Self::Copy,
    ];
}

/// An error with all that is known about it. One pointer wide. A clone says the same: of a failure that ends many operations each has one.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    operation: Option<Operation>,
    peer: Option<String>,
    transport: Option<&'static str>,
    bytes_moved: u64,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` that says `message`.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            operation: None,
            peer: None,
            transport: None,
            bytes_moved: 0,
            source: None,
        }))
    }

    /// An error that the system reported while doing `message`; the kind follows the system's.
    #[cold]
    pub fn io(message: impl Into<Cow<'static, str>>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let kind = match source.kind() {
            io::ErrorKind::ConnectionRefused => ErrorKind::ConnectionRefused,
            io::ErrorKind::AddrInUse => ErrorKind::AddrInUse,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotConnected => ErrorKind::ConnectionReset,
            io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::AddrNotAvailable => ErrorKind::Unreachable,
            io::ErrorKind::TimedOut => ErrorKind::DeadlineExceeded,
            io::ErrorKind::OutOfMemory | io::ErrorKind::FileTooLarge => ErrorKind::Exhausted,
            _ => match source.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOSPC) => {
                    ErrorKind::Exhausted
                }
                _ => ErrorKind::Io,
            },
        };
        Self::new(kind, message).with_source(source)
    }

    /// Adds the cause, whose text is said behind this one's unless that has it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// Says more of what went wrong, in front.
    #[cold]
    pub(crate) fn saying(mut self, text: &str) -> Self {
        self.0.message = format!("{text}: {}", self.0.message).into();
        self
    }

    /// The same as one of another kind, for who knows more of what it means.
    #[cold]
    pub(crate) fn of_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Says which operation failed.
    #[must_use]
    pub fn during(mut self, operation: Operation) -> Self {
        self.set_operation(operation);
        self
    }

    /// As [`Error::during`], where nothing has said it.
    pub(crate) fn or_during(mut self, operation: Operation) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    pub(crate) fn set_operation(&mut self, operation: Operation) {
        self.0.operation = Some(operation);
    }

    /// Says with whom.
    #[must_use]
    pub fn with_peer(mut self, peer: impl fmt::Display) -> Self {
        self.0.peer = Some(peer.to_string());
        self
    }

    /// Says over which transport.
    #[must_use]
    pub fn over(mut self, transport: &'static str) -> Self {
        self.0.transport = Some(transport);
        self
    }

    /// Says how many bytes had moved.
    #[must_use]
    pub fn after_bytes(mut self, bytes: u64) -> Self {
        self.0.bytes_moved = bytes;
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// The operation that failed, when one did.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        self.0.operation
    }
    /// The peer, as it was named when the connection was made.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.0.peer.as_deref()
    }
    /// The transport in use.
    #[must_use]
    pub fn transport(&self) -> Option<&'static str> {
        self.0.transport
    }
    /// How many bytes of the operation had moved before it failed; the content of a receive buffer past them is unspecified.
    #[must_use]
    pub fn bytes_moved(&self) -> u64 {
        self.0.bytes_moved
    }
    /// Whether the connection, not just this operation, is gone by a failure: not where the peer closed it in order.
    #[must_use]
    pub fn is_peer_failure(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::AbortedByPeer
                | ErrorKind::ConnectionReset
                | ErrorKind::PeerDied
                | ErrorKind::Unreachable
                | ErrorKind::Protocol
        )
    }
    /// With which code and words the peer closed the connection, where it gave any.
    #[must_use]
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.get_ref()?.downcast_ref()
    }
    /// The error that this one reports: the system's [`io::Error`], a driver's status. Its text is part of this one's.
    ///
    /// ```
    /// let system = std::io::Error::from_raw_os_error(111);
    /// let error = wharf::Error::io("asking for a page", system);
    /// assert_eq!(error.to_string(), "asking for a page: Connection refused (os error 111)");
    /// let system = error.get_ref().and_then(|error| error.downcast_ref::<std::io::Error>());
    /// assert_eq!(system.and_then(std::io::Error::raw_os_error), Some(111));
    /// ```
    #[must_use]
    pub fn get_ref(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }
}

/// Why the peer closed the connection, as it said: [`Endpoint::close_with`](crate::Endpoint::close_with).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseReason {
    code: u32,
    text: String,
}

impl CloseReason {
    /// Bytes of the longest text.
    pub(crate) const LONGEST: usize = 255;

    pub(crate) fn new(code: u32, text: &str) -> Self {
        let end = text.floor_char_boundary(Self::LONGEST);
        let text = text[..end].to_owned();
        Self { code, text }
    }
    /// The number, which means what the two programs have agreed on.
    #[must_use]
    pub fn code(&self) -> u32 {
        self.code
    }
    /// The words for people, as the peer chose them; at most 255 bytes.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "code {}", self.code)?;
        match self.text.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.text.escape_debug()),
        }
    }
}

impl StdError for CloseReason {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let source = inner.source.as_deref().map(ToString::to_string);
        let reason = source.filter(|reason| !inner.message.contains(reason));
        let said = [Some(&*inner.message), reason.as_deref()];
        let mut peer = inner.peer.as_deref();
        // Each thing once.
        peer.take_if(|peer| said.iter().flatten().any(|text| text.contains(&**peer)));
        if let Some(operation) = inner.operation {
            write!(f, "{operation}")?;
            let way = match operation {
                Operation::Connect => Some("to"),
                Operation::Accept => Some("from"),
                _ => None,
            };
            if let Some((way, peer)) = way.and_then(|way| Some((way, peer.take()?))) {
                write!(f, " {way} {peer}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&inner.message)?;
        if let Some(reason) = &reason {
            write!(f, ": {reason}")?;
        }
        if let Some(peer) = peer {
            write!(f, " (peer {peer})")?;
        }
        if let Some(transport) = inner.transport {
            write!(f, " over {transport}")?;
        }
        if inner.bytes_moved > 0 {
            write!(f, " after {} bytes", inner.bytes_moved)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl StdError for Error {
    /// What lies beneath the error that this one reports, and says.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref()?.source()
    }
}

impl From<io::Error> for Error {
    /// What the system said; an [`Error`] that was made one of the system's comes back as it was.
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => error,
            Err(error) => Self::io(error.to_string(), error),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::Configuration | ErrorKind::OutOfBounds => {
                io::ErrorKind::InvalidInput
            }
            ErrorKind::Truncated
            | ErrorKind::Malformed
            | ErrorKind::Protocol
            | ErrorKind::VersionMismatch
            | ErrorKind::StaleKey => io::ErrorKind::InvalidData,
            ErrorKind::Canceled => io::ErrorKind::Interrupted,
            ErrorKind::DeadlineExceeded => io::ErrorKind::TimedOut,
            ErrorKind::WouldBlock => io::ErrorKind::WouldBlock,
            ErrorKind::ConnectionRefused | ErrorKind::Rejected => io::ErrorKind::ConnectionRefused,
            ErrorKind::AddrInUse => io::ErrorKind::AddrInUse,
            ErrorKind::AbortedByPeer => io::ErrorKind::ConnectionAborted,
            ErrorKind::ClosedByPeer | ErrorKind::ConnectionReset | ErrorKind::PeerDied => {
                io::ErrorKind::ConnectionReset
            }
            ErrorKind::Closed => io::ErrorKind::NotConnected,
            ErrorKind::Unreachable => io::ErrorKind::HostUnreachable,
            ErrorKind::AuthenticationFailed
            | ErrorKind::AccessDenied
            | ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::Exhausted => io::ErrorKind::OutOfMemory,
            ErrorKind::Unsupported | ErrorKind::Forked => io::ErrorKind::Unsupported,
            ErrorKind::DeviceLost | ErrorKind::Io => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// An error of an operation that had been given a buffer, with the buffer where it can be given back.
///
/// `?` turns it into an [`Error`] and drops the buffer; [`OpError::into_parts`] keeps it. The buffer is `None` when the
/// operation still needs it: a transfer that a deadline or a cancellation could not stop runs to its end first.
pub struct OpError<B> {
    error: Error,
    buffer: Option<B>,
}

impl<B> OpError<B> {
    /// Pairs an error with the buffer.
    pub fn new(error: Error, buffer: Option<B>) -> Self {
        Self { error, buffer }
    }
    /// The error alone.
    pub fn error(&self) -> &Error {
        &self.error
    }
    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }
    /// The error and the buffer.
    pub fn into_parts(self) -> (Error, Option<B>) {
        (self.error, self.buffer)
    }
    /// The same error with another view of the buffer.
    pub fn map<C>(self, f: impl FnOnce(B) -> C) -> OpError<C> {
        OpError {
            error: self.error,
            buffer: self.buffer.map(f),
        }
    }
}

impl<B> fmt::Display for OpError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> fmt::Debug for OpError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> StdError for OpError<B> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

impl<B> From<OpError<B>> for Error {
    fn from(error: OpError<B>) -> Self {
        error.error
    }
}

impl<B> From<OpError<B>> for io::Error {
    fn from(error: OpError<B>) -> Self {
        error.error.into()
    }
}
