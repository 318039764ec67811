//! Memory of other processes, as an accelerator has it: made when somebody asks first, or left out.

use std::{
    future::ready,
    sync::{Arc, OnceLock},
};

use super::{Ipc, Sharing};
use crate::{
    error::{Error, ErrorKind, Result},
    transport::accelerator::{Export, Import, ImportedMemory},
    types::Identity,
};

/// See the module. Clones are the same.
#[derive(Debug)]
pub(crate) struct LazyIpc<S: Sharing> {
    ipc: Arc<OnceLock<Ipc<S>>>,
    name: &'static str,
    left_out: bool,
}

impl<S: Sharing> LazyIpc<S> {
    /// By its name in configuration.
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            ipc: Arc::default(),
            name,
            left_out: false,
        }
    }

    /// Whether the program or the configuration wants it.
    pub(crate) fn choose(&mut self, yes: bool) {
        self.left_out = !yes;
    }

    /// Its name, and whether it is wanted.
    pub(crate) fn part(&self) -> (&'static str, Result<String>) {
        let state = match self.left_out {
            true => Err(Error::new(ErrorKind::Unsupported, self.why())),
            false => Ok("tried when a peer on this host first needs it".to_owned()),
        };
        (self.name, state)
    }

    /// See [`Accelerator::export`](crate::transport::accelerator::Accelerator::export). `make` may load the driver.
    /// Errors: as there, and of `make`.
    pub(crate) fn export(
        &self,
        address: u64,
        length: u64,
        make: impl FnOnce() -> Result<S>,
    ) -> Result<Export> {
        match self.left_out {
            true => Ok(Export::Impossible(self.why())),
            false => self.opened(make)?.export(address, length),
        }
    }

    /// See [`Accelerator::exported`](crate::transport::accelerator::Accelerator::exported).
    pub(crate) fn exported(&self, address: u64, length: u64) -> Option<Export> {
        self.ipc.get()?.exported(address, length)
    }

    /// See [`Accelerator::import`](crate::transport::accelerator::Accelerator::import). `started`: the driver is initialised; else `start` does that, for the first import of
    /// this process, on a thread that may block, if the memory can be reached at all.
    pub(crate) fn import(
        &self,
        descriptor: &[u8],
        peer: &Identity,
        started: bool,
        start: impl FnOnce() -> Result<S> + Send + 'static,
    ) -> Import {
        if self.left_out {
            let error = Error::new(ErrorKind::Unsupported, self.why());
            return Box::pin(ready(Err(error)));
        }
        if let Some(ipc) = self.ipc.get().filter(|_| started) {
            return ipc.import(descriptor, peer);
        }
        let judged = Ipc::<S>::judge(descriptor, peer);
        let (this, descriptor, peer) = (self.clone(), descriptor.to_vec(), peer.clone());
        Box::pin(async move {
            judged?;
            let made = this.clone();
            let start = move || {
                let sharing = start()?;
                made.opened(|| Ok(sharing)).map(drop)
            };
            let started = tokio::task::spawn_blocking(start).await;
            started.map_err(|error| {
                let text = "starting the driver was broken off";
                Error::new(ErrorKind::Canceled, text).with_source(error)
            })??;
            let none = || Error::new(ErrorKind::Io, "nothing was started");
            let ipc = this.ipc.get().ok_or_else(none)?;
            ipc.import(&descriptor, &peer).await
        })
    }

    /// See [`Accelerator::imported`](crate::transport::accelerator::Accelerator::imported).
    pub(crate) fn imported(&self, descriptor: &[u8], peer: &Identity) -> Option<ImportedMemory> {
        self.ipc.get()?.imported(descriptor, peer)
    }

    fn opened(&self, make: impl FnOnce() -> Result<S>) -> Result<&Ipc<S>> {
        if let Some(ipc) = self.ipc.get() {
            return Ok(ipc);
        }
        let made = Ipc::new(make()?)?;
        Ok(self.ipc.get_or_init(|| made))
    }

    /// Why memory of other processes is not opened here.
    fn why(&self) -> String {
        format!("{} is left out here", self.name)
    }
}

impl<S: Sharing> Clone for LazyIpc<S> {
    fn clone(&self) -> Self {
        Self {
            ipc: Arc::clone(&self.ipc),
            ..*self
        }
    }
}
