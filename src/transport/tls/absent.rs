//! Where the feature `tls` is not built in: nothing of it can be had.

use std::{
    convert::Infallible,
    io::{self, IoSlice},
    net::IpAddr,
};

use crate::error::{Error, Result};

/// What a peer has shown.
pub(crate) type Certificates = Infallible;

/// How connections are encrypted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn dial(
        &self,
        _worker: bool,
        _host: Option<&str>,
        _address: IpAddr,
    ) -> Result<Session> {
        match *self {}
    }

    pub(crate) fn accept(&self) -> Result<Session> {
        match *self {}
    }
}

/// A socket's own calls, which never wait.
pub(crate) type Reading<'a> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'a;
pub(crate) type Writing<'a> = dyn FnMut(&[u8]) -> io::Result<usize> + 'a;

/// One connection's.
#[derive(Debug)]
pub(crate) enum Session {}

impl Session {
    pub(crate) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(crate) fn wants_write(&self) -> bool {
        match *self {}
    }

    pub(crate) fn certificates(&self) -> Option<Certificates> {
        match *self {}
    }

    pub(crate) fn shake(&mut self, _from: &mut Reading<'_>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn heard_plain_text(&self) -> bool {
        match *self {}
    }

    pub(crate) fn read(
        &mut self,
        _from: &mut Reading<'_>,
        _room: usize,
        _put: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn write(
        &mut self,
        _to: &mut Writing<'_>,
        _parts: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn flush(&mut self, _to: &mut Writing<'_>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn close(&mut self, _to: &mut Writing<'_>) {
        match *self {}
    }
}

/// Nothing.
pub(crate) fn explained(_error: &io::Error) -> Option<Error> {
    None
}
