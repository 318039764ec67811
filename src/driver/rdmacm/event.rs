//! What a connection manager tells.
//!
//! # Safety
//! An event is copied, bytes and all, before it is acknowledged; see `rdmacm`.
#![allow(unsafe_code)]

use std::{
    fmt,
    ptr::{self, NonNull},
    slice,
};

use super::{EventChannel, Id, driver::NO_DEVICE};
use crate::{
    driver::verbs::failure,
    error::{Error, ErrorKind, Result},
};

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(crate) struct EventKind(pub(crate) u32);

/// Names and phrases.
macro_rules! kinds {
    ($( $name:ident = $number:literal, $phrase:literal; )+) => {
        #[allow(dead_code, reason = "the names of the header, whether somebody compares with them or not")]
        impl EventKind {
            $( #[doc = concat!("`", stringify!($name), "`: ", $phrase, ".")]
            pub(crate) const $name: Self = Self($number); )+
        }

        impl fmt::Display for EventKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $( $number => f.write_str(concat!($phrase, " (", stringify!($name), ", ", $number, ")")), )+
                    other => write!(f, "connection event {other}"),
                }
            }
        }
    };
}

kinds! {
    ADDR_RESOLVED = 0, "the device is found";
    ADDR_ERROR = 1, "no device leads there";
    ROUTE_RESOLVED = 2, "the way is found";
    ROUTE_ERROR = 3, "no way leads there";
    CONNECT_REQUEST = 4, "somebody asks";
    CONNECT_RESPONSE = 5, "the other side has accepted";
    CONNECT_ERROR = 6, "the connection could not be made";
    UNREACHABLE = 7, "the other side does not answer";
    REJECTED = 8, "the other side has turned it down";
    ESTABLISHED = 9, "the connection stands";
    DISCONNECTED = 10, "the connection has ended";
    DEVICE_REMOVAL = 11, "the device is being removed";
    MULTICAST_JOIN = 12, "joined";
    MULTICAST_ERROR = 13, "not joined";
    ADDR_CHANGE = 14, "the interface's hardware address changed";
    TIMEWAIT_EXIT = 15, "the queue pair's number may be used again";
}

impl fmt::Debug for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One thing told.
#[derive(Debug)]
pub(crate) struct Event {
    /// What.
    pub(crate) kind: EventKind,
    /// Why; 0, a negative error number, or with a rejection its reason (28: by the program; 8: nobody listens).
    pub(crate) status: i32,
    /// Of a request: the new end of the connection. Dropping it turns the request down.
    pub(crate) incoming: Option<Id>,
    /// The other side's bytes with a request, or with its answer; zeros may follow them.
    pub(crate) data: Vec<u8>,
}

impl Event {
    /// The error that it tells, if it tells one.
    pub(crate) fn error(&self) -> Option<Error> {
        /// `IB_CM_REJ_INVALID_SERVICE_ID`.
        const NOBODY_LISTENS: i32 = 8;
        let kind = match self.kind {
            EventKind::ADDR_ERROR | EventKind::ROUTE_ERROR | EventKind::UNREACHABLE => {
                ErrorKind::Unreachable
            }
            EventKind::CONNECT_ERROR => ErrorKind::Io,
            EventKind::REJECTED if self.status == NOBODY_LISTENS => ErrorKind::ConnectionRefused,
            EventKind::REJECTED => ErrorKind::Rejected,
            EventKind::DISCONNECTED => ErrorKind::ConnectionReset,
            EventKind::DEVICE_REMOVAL => ErrorKind::DeviceLost,
            _ => return None,
        };
        let why = match self.status {
            0 => String::new(),
            errno if errno < 0 => format!(
                ": {}",
                std::io::Error::from_raw_os_error(errno.saturating_abs())
            ),
            reason => format!(": reason {reason}"),
        };
        Some(Error::new(kind, format!("{}{why}", self.kind)))
    }
}

impl EventChannel {
    /// The next event, or `None` when there is none now; the descriptor is then readable again when there is. Never waits.
    /// Errors: as of any call.
    pub(crate) fn next(&self) -> Result<Option<Event>> {
        self.0.usable()?;
        let api = &self.0.cm.api;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        while unsafe { (api.rdma_get_cm_event)(self.0.raw.as_ptr(), &raw mut raw) } != 0 {
            match failure::last() {
                // What was interrupted leaves an event that would not be told again.
                libc::EINTR => {}
                libc::EAGAIN => return Ok(None),
                errno => return Err(failure::failed("rdma_get_cm_event", NO_DEVICE, errno)),
            }
        }
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: an event that was just got, until it is acknowledged below. The union holds a connection's parameters, as all
        // identifiers here are of reliable connections; the pointer and its length belong together.
        let (id, kind, status, data) = unsafe {
            let event = &*raw;
            let conn = &event.conn;
            let data = match conn.private_data_len {
                0 => Vec::new(),
                _ if conn.private_data.is_null() => Vec::new(),
                length => {
                    slice::from_raw_parts(conn.private_data.cast::<u8>(), usize::from(length))
                        .to_vec()
                }
            };
            (event.id, EventKind(event.event), event.status, data)
        };
        let carries = matches!(
            kind,
            EventKind::CONNECT_REQUEST
                | EventKind::CONNECT_RESPONSE
                | EventKind::ESTABLISHED
                | EventKind::REJECTED
        );
        let data = if carries { data } else { Vec::new() };
        // SAFETY: acknowledged once; nothing points into it.
        unsafe { (api.rdma_ack_cm_event)(raw) };
        let incoming = match kind {
            EventKind::CONNECT_REQUEST => NonNull::new(id).map(|id| self.adopt(id)),
            _ => None,
        };
        Ok(Some(Event {
            kind,
            status,
            incoming,
            data,
        }))
    }
}
