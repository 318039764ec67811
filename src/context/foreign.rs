//! Buffers of memory that the program allocated itself, on a device or the host. Whose it is, the context finds out by the address.
//!
//! # Safety
//! Whoever makes one vouches for the bytes. What type they have is asked of the context's domains.
#![allow(unsafe_code)]

use crate::{
    context::Context,
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        AddressRange, ArrayInterface, Buffer, BufferMut, DlpackTensor, DomainMemory, Foreign,
        MemoryAttributes,
    },
    sys::fork,
    types::MemoryType,
};

impl Buffer {
    /// Memory that the program allocated itself: of a device (`cudaMalloc`, `hipMalloc`), pinned, mapped, or ordinary. No type is asked for: the memory
    /// domains of the context know it by its address, else by [`Context::notify_allocated`]. What none of them knows is the host's. Operations of this context's workers take it as they take memory
    /// that wharf allocated.
    ///
    /// The owner is dropped when wharf is done with the memory: with the last clone, those that operations hold among them. It keeps the memory allocated, as an
    /// `Arc` of whatever frees it does; what is never freed needs none: `()`.
    ///
    /// ```
    /// # async fn run() -> wharf::Result<()> {
    /// use wharf::{Buffer, Context, Worker};
    ///
    /// # let context = Context::builder().transports("self")?.build()?;
    /// let worker = Worker::new(&context)?;
    /// let words: std::sync::Arc<[u64]> = [1, 2, 3].into();
    /// let address = words.as_ptr().expose_provenance() as u64;
    /// // SAFETY: the words stay where they are, unchanged, as long as the second owner of them lives.
    /// let buffer = unsafe { Buffer::foreign(&context, address, 24, words.clone()) }?;
    /// let copied = worker.copy(buffer, vec![0; 24]).await?;
    /// assert_eq!(copied[8], 2);
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`: null, not all in one allocation, or unknown where the host has no memory; what the domain's driver said; `Forked` in a child made by `fork`. The owner is dropped then.
    ///
    /// # Safety
    /// The `length` bytes at `address` are allocated, initialised and unchanged until the owner is dropped; so is work of a device's that has yet to write
    /// them done. Those that the host reaches are at most `isize::MAX`, and the pointer that they have there was exposed.
    #[doc(alias("ucp_mem_map", "UCP_MEM_MAP_PARAM_FIELD_ADDRESS", "cudaMalloc"))]
    pub unsafe fn foreign(
        context: &Context,
        address: u64,
        length: usize,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        let range = AddressRange::new(address, length as u64)?;
        // SAFETY: the caller vouches for it; as nobody writes it, neither does this.
        unsafe { foreign(context, range, owner) }.map(BufferMut::freeze)
    }

    /// An array of a Python library's, by what it says of itself; as [`foreign`](Self::foreign).
    ///
    /// # Errors
    /// As of [`foreign`](Self::foreign); `InvalidArgument`: its elements are not in one run, row by row.
    ///
    /// # Safety
    /// As of [`foreign`](Self::foreign), for the bytes of its elements.
    pub unsafe fn from_array(
        context: &Context,
        array: &ArrayInterface,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        // SAFETY: the caller vouches for it.
        unsafe { foreign(context, array.range()?, owner) }.map(BufferMut::freeze)
    }
}

impl BufferMut {
    /// Memory that the program allocated itself, to receive into; as [`Buffer::foreign`]. It comes back as it was given, with the result.
    ///
    /// # Errors
    /// As of [`Buffer::foreign`].
    ///
    /// # Safety
    /// As of [`Buffer::foreign`], and nobody else reads or writes the bytes until the owner is dropped; but for work of a device that is ordered with this
    /// buffer's operations.
    pub unsafe fn foreign(
        context: &Context,
        address: u64,
        length: usize,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        let range = AddressRange::new(address, length as u64)?;
        // SAFETY: the caller vouches for it.
        unsafe { foreign(context, range, owner) }
    }

    /// An array of a Python library's, to receive into; as [`Buffer::from_array`].
    ///
    /// # Errors
    /// As of [`Buffer::from_array`]; `AccessDenied`: it is read-only.
    ///
    /// # Safety
    /// As of [`foreign`](Self::foreign), for the bytes of its elements.
    pub unsafe fn from_array(
        context: &Context,
        array: &ArrayInterface,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        if array.read_only {
            return Err(read_only());
        }
        // SAFETY: the caller vouches for it.
        unsafe { foreign(context, array.range()?, owner) }
    }
}

impl DlpackTensor {
    /// Its memory as a buffer to send from. It goes back to its library with the last clone.
    ///
    /// # Errors
    /// `InvalidArgument`: its elements are not in one run, row by row; `Unsupported`: of a device that no accelerator of the context has; as of
    /// [`Buffer::foreign`].
    pub fn into_buffer(self, context: &Context) -> Result<Buffer> {
        self.into_any(context).map(BufferMut::freeze)
    }

    /// Its memory as a buffer to receive into.
    ///
    /// # Errors
    /// As of [`into_buffer`](Self::into_buffer); `AccessDenied`: it is read-only.
    ///
    /// # Safety
    /// Nobody else reads or writes the elements until the buffer is dropped: a producer's arrays share them.
    pub unsafe fn into_buffer_mut(self, context: &Context) -> Result<BufferMut> {
        match self.is_read_only() {
            true => Err(read_only()),
            false => self.into_any(context),
        }
    }

    fn into_any(self, context: &Context) -> Result<BufferMut> {
        let range = self.range()?;
        let Some(known) = known(context, range)? else {
            return Ok(BufferMut::default());
        };
        self.agree(known.memory_type)?;
        // SAFETY: whoever made it vouched for its bytes, which stay until its deleter is called; that others do not write them, or read them
        // either, is the standard's rule for what is lent to be read, and else the caller's promise.
        Ok(unsafe { buffer(range, known, self) })
    }
}

/// Memory of the program's, of the type that the context finds.
///
/// # Safety
/// As of [`Foreign::new`], but for what is known of it.
unsafe fn foreign(
    context: &Context,
    range: AddressRange,
    owner: impl Send + Sync + 'static,
) -> Result<BufferMut> {
    Ok(match known(context, range)? {
        // SAFETY: the caller vouches for the bytes, and the domains have said what they are.
        Some(known) => unsafe { buffer(range, known, owner) },
        None => BufferMut::default(),
    })
}

/// What the context knows of it; `None`: no bytes.
fn known(context: &Context, range: AddressRange) -> Result<Option<MemoryAttributes>> {
    fork::check(Operation::Memory)?;
    if range.is_empty() {
        return Ok(None);
    }
    if range.start() == 0 {
        let text = format!("{} bytes at a null address", range.len());
        return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory));
    }
    let known = context.memory().types.find_current(range)?;
    match known.memory_type == MemoryType::Host && is_no_hosts(range) {
        true => Err(nobodys(range)),
        false => Ok(Some(known)),
    }
}

/// # Safety
/// As of [`Foreign::new`].
unsafe fn buffer(
    range: AddressRange,
    known: MemoryAttributes,
    owner: impl Send + Sync + 'static,
) -> BufferMut {
    // SAFETY: the caller's promise.
    let memory: Box<dyn DomainMemory> = Box::new(unsafe { Foreign::new(range, known, owner) });
    memory.into()
}

/// Whether the processor has no such addresses: a device's, then.
fn is_no_hosts(range: AddressRange) -> bool {
    cfg!(target_arch = "x86_64") && range.end() > AddressRange::HOST_END
}

#[cold]
fn nobodys(range: AddressRange) -> Error {
    let text = format!(
        "{range} is no memory of the host's, and no memory domain of this context knows it; where none can, Context::notify_allocated says whose it is"
    );
    Error::new(ErrorKind::InvalidArgument, text).during(Operation::Memory)
}

#[cold]
fn read_only() -> Error {
    Error::new(
        ErrorKind::AccessDenied,
        "an array that is to be read only is no place to receive into",
    )
    .during(Operation::Memory)
}
