//! Tensors of Python's libraries, moved without a copy in between: NumPy's, PyTorch's and CuPy's, on the host or on a CUDA device.
//!
//! ```sh
//! cargo build --release --example python_tensors && python3 examples/python_tensors/main.py target/release/examples/libpython_tensors.so
//! ```
//!
//! A library for Python's `ctypes`: one worker that is connected to itself sends what one tensor has into another. Where the memory lies nobody says: wharf
//! finds it by the address. What a library lends goes back to it when the operation is over, on whatever thread that is.
//!
//! # Safety
//! `main.py` keeps what each function asks for.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_char, c_void},
    ptr, slice,
    time::Duration,
};

use tokio::runtime::Runtime;
use wharf::{
    Buffer, BufferMut, Context, Endpoint, Error, ErrorKind, Tag, Worker,
    memory::{ArrayInterface, DlpackTensor},
};

/// What [`tensors_open`] makes.
#[derive(Debug)]
pub struct Session {
    runtime: Runtime,
    context: Context,
    worker: Worker,
    endpoint: Endpoint,
}

/// What went wrong, for Python; null: nothing. To be freed by [`tensors_free`].
fn said(result: wharf::Result<()>) -> *mut c_char {
    match result {
        Ok(()) => ptr::null_mut(),
        Err(error) => {
            let text = error.to_string().replace('\0', " ");
            CString::new(text).unwrap_or_default().into_raw()
        }
    }
}

fn open() -> wharf::Result<Session> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Io, "a runtime").with_source(error))?;
    let context = Context::builder().build()?;
    let (worker, endpoint) = runtime.block_on(async {
        let worker = Worker::new(&context)?;
        let address = worker.address()?;
        let endpoint = worker.connect(&address).await?;
        Ok::<_, Error>((worker, endpoint))
    })?;
    Ok(Session {
        runtime,
        context,
        worker,
        endpoint,
    })
}

/// A worker that is connected to itself; null, and an error at `error`.
///
/// # Safety
/// `error` points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensors_open(error: *mut *mut c_char) -> *mut Session {
    let (session, result) = match open() {
        Ok(session) => (Box::into_raw(Box::new(session)), Ok(())),
        Err(error) => (ptr::null_mut(), Err(error)),
    };
    // SAFETY: the caller's place.
    unsafe { error.write(said(result)) };
    session
}

impl Session {
    /// One message. What was received into is seen by everybody when it has come.
    fn send(&self, from: Buffer, to: BufferMut) -> wharf::Result<()> {
        self.runtime.block_on(async {
            let received = self.worker.tag_recv(Tag(1), to);
            let (sent, received) = tokio::join!(self.endpoint.tag_send(Tag(1), from), received);
            sent?;
            received.map(drop).map_err(|error| error.into_parts().0)
        })
    }
}

/// Takes a capsule's pointer.
///
/// # Safety
/// It points to a tensor of this form, which is the callee's from now on.
unsafe fn tensor(at: *mut c_void, versioned: bool) -> wharf::Result<DlpackTensor> {
    // SAFETY: the caller vouches for it.
    unsafe {
        match versioned {
            true => DlpackTensor::from_raw_versioned(at),
            false => DlpackTensor::from_raw(at),
        }
    }
}

/// Sends what one tensor has into another of as many bytes. Null, or what went wrong.
///
/// # Safety
/// A session; the pointers of two DLPack capsules, both with versions or both without, which are this function's from now on. Nobody writes the first tensor or
/// uses the second meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensors_send(
    session: *const Session,
    from: *mut c_void,
    to: *mut c_void,
    versioned: bool,
) -> *mut c_char {
    // SAFETY: the caller vouches for all of it; both are taken before either is refused.
    let (session, from, to) =
        unsafe { (&*session, tensor(from, versioned), tensor(to, versioned)) };
    said((|| {
        let from = from?.into_buffer(&session.context)?;
        // SAFETY: nobody uses it, says the caller.
        let to = unsafe { to?.into_buffer_mut(&session.context) }?;
        session.send(from, to)
    })())
}

/// The same from an array by its `__array_interface__` or `__cuda_array_interface__`, which its owner keeps until the call ends.
///
/// # Safety
/// As of [`tensors_send`]; `shape`, and `strides` unless null, are of `ndim` numbers, and `typestr` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensors_send_array(
    session: *const Session,
    data: u64,
    typestr: *const c_char,
    ndim: usize,
    shape: *const i64,
    strides: *const i64,
    to: *mut c_void,
    versioned: bool,
) -> *mut c_char {
    // SAFETY: the caller vouches for all of it.
    let (session, array, to) = unsafe {
        let array = ArrayInterface {
            data,
            read_only: true,
            shape: slice::from_raw_parts(shape, ndim).to_vec(),
            typestr: CStr::from_ptr(typestr).to_string_lossy().into_owned(),
            strides: (!strides.is_null()).then(|| slice::from_raw_parts(strides, ndim).to_vec()),
        };
        (&*session, array, tensor(to, versioned))
    };
    said((|| {
        // SAFETY: the owner of it waits for the end of this call, by which the message is over, or its connection.
        let from = unsafe { Buffer::from_array(&session.context, &array, ()) }?;
        // SAFETY: nobody uses it, says the caller.
        let to = unsafe { to?.into_buffer_mut(&session.context) }?;
        session.send(from, to)
    })())
}

/// Frees what another function said.
///
/// # Safety
/// It is such a text, or null, and freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensors_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: made by `said`.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Ends it.
///
/// # Safety
/// A session, which is gone then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensors_close(session: *mut Session) -> *mut c_char {
    // SAFETY: made by `tensors_open`.
    let session = unsafe { Box::from_raw(session) };
    let Session {
        runtime,
        worker,
        endpoint,
        ..
    } = *session;
    said(runtime.block_on(async {
        drop(endpoint);
        worker.shutdown(Duration::from_secs(5)).await
    }))
}
