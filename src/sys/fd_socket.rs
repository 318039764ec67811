//! A socket over which descriptors may come, asked for or not.
//!
//! # Safety
//! The stream is taken out of a [`Socket`] when it is dropped, and at no other time.
#![allow(unsafe_code)]

use std::{mem::ManuallyDrop, ops::Deref, os::fd::OwnedFd};

use super::{fd_passing, fork};

/// The socket of a connection. It ends as [`fd_passing::close`] says.
#[derive(Debug)]
pub(crate) struct Socket<S: Into<OwnedFd>>(ManuallyDrop<S>);

impl<S: Into<OwnedFd>> Socket<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(ManuallyDrop::new(stream))
    }
}

impl<S: Into<OwnedFd>> Deref for Socket<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: Into<OwnedFd>> Drop for Socket<S> {
    fn drop(&mut self) {
        // SAFETY: it is taken nowhere else, and not used after this.
        let stream = unsafe { ManuallyDrop::take(&mut self.0) };
        // In a child made by `fork` it is the parent's, whose connection goes on.
        if !fork::forked() {
            fd_passing::close(stream.into());
        }
    }
}
