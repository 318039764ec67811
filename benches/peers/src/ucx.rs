//! UCX inside the measured processes, by the crate `ucx-rs`: polling as a C program would, and in a Tokio task.
//!
//! Comes in: a half; its variant says how it waits (`poll`, `yield`, `asyncfd`), the environment says which transports. Goes out:
//! nanoseconds, millions a second, or GB a second, as the verb wants.
//!
//! # Safety
//!
//! One thread calls UCX. Handles live in [`Ucx`], which is dropped after the last request was waited for. Every buffer given to UCX is
//! declared before the requests that use it and outlives them, because each function here waits for or cancels what it started.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null, null_mut};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use ucx_rs::{decode_status_ptr, status_string, sys};

use crate::half::{Arrivals, Half, Laps, parked_sender};
use crate::spec::Verb;
use crate::{Outcome, runtime};

const DATA: u64 = 7;
const STOP: u64 = 8;
const ACK: u64 = 9;
const MEET: u64 = 10;

pub(crate) fn run(half: &mut Half) -> Outcome<f64> {
    let ucx = Ucx::connect(half)?;
    let value = match (half.spec.verb, half.spec.variant.as_str()) {
        (Verb::Latency, "poll") => latency(half, &ucx),
        (Verb::Latency, _) => runtime()?.block_on(latency_in_task(half, &ucx)),
        (Verb::Rate | Verb::Stream | Verb::StreamOwned, _) => stream(half, &ucx),
        (Verb::Put | Verb::Get | Verb::FetchAdd, _) => one_sided(half, &ucx),
        (verb, _) if verb.is_am() => active_messages(half, &ucx),
        (Verb::Parked, _) => parked(half, &ucx),
        (verb, _) => Err(format!("UCX has no {verb:?} here").into()),
    }?;
    ucx.meet()?;
    half.barrier()?;
    Ok(value)
}

fn latency(half: &Half, ucx: &Ucx) -> Outcome<f64> {
    let size = half.spec.size;
    let mut buffer = Memory::ordinary(size);
    if half.is_a() {
        let mut laps = Laps::start(&half.spec);
        loop {
            for _ in 0..laps.batch() {
                ucx.wait(ucx.send(&buffer, DATA)?)?;
                ucx.wait(ucx.receive(&mut buffer, DATA)?)?;
            }
            if !laps.lap() {
                buffer.set_first(STOP as u8);
                ucx.wait(ucx.send(&buffer, DATA)?)?;
                return Ok(laps.median() / 2.0);
            }
        }
    }
    loop {
        ucx.wait(ucx.receive(&mut buffer, DATA)?)?;
        if buffer.first() == STOP as u8 {
            return Ok(0.0);
        }
        ucx.wait(ucx.send(&buffer, DATA)?)?;
    }
}

async fn latency_in_task(half: &Half, ucx: &Ucx) -> Outcome<f64> {
    let size = half.spec.size;
    let waiting = Waiting::new(half, ucx)?;
    let mut buffer = Memory::ordinary(size);
    if half.is_a() {
        let mut laps = Laps::start(&half.spec);
        loop {
            for _ in 0..laps.batch() {
                waiting.wait(ucx, ucx.send(&buffer, DATA)?).await?;
                waiting.wait(ucx, ucx.receive(&mut buffer, DATA)?).await?;
            }
            if !laps.lap() {
                buffer.set_first(STOP as u8);
                ucx.wait(ucx.send(&buffer, DATA)?)?;
                return Ok(laps.median() / 2.0);
            }
        }
    }
    loop {
        waiting.wait(ucx, ucx.receive(&mut buffer, DATA)?).await?;
        if buffer.first() == STOP as u8 {
            return Ok(0.0);
        }
        waiting.wait(ucx, ucx.send(&buffer, DATA)?).await?;
    }
}

fn parked(half: &mut Half, ucx: &Ucx) -> Outcome<f64> {
    let mut buffer = Memory::ordinary(8);
    if half.is_a() {
        parked_sender(&half.spec, |stamp| {
            buffer.set_word(stamp);
            ucx.wait(ucx.send(&buffer, DATA)?)
        })?;
        return half.hand_over(0.0);
    }
    let mut arrivals = Arrivals::default();
    runtime()?.block_on(async {
        let waiting = Waiting::new(half, ucx)?;
        loop {
            waiting.wait(ucx, ucx.receive(&mut buffer, DATA)?).await?;
            if !arrivals.note(buffer.word()) {
                return Outcome::Ok(());
            }
        }
    })?;
    half.hand_over(arrivals.median())
}

/// Counts messages where they lie, as `ucx_perftest` does.
///
/// # Safety
/// `arg` is the `Cell` that was given with this function.
unsafe extern "C" fn count(
    arg: *mut std::ffi::c_void,
    _header: *const std::ffi::c_void,
    _header_length: usize,
    _data: *mut std::ffi::c_void,
    _length: usize,
    _param: *const sys::ucp_am_recv_param_t,
) -> sys::ucs_status_t {
    // SAFETY: by this function's contract; one thread uses it.
    let counter = unsafe { &*arg.cast::<Cell<u64>>() };
    counter.set(counter.get() + 1);
    sys::ucs_status_t_UCS_OK
}

/// The same, having read each byte.
///
/// # Safety
/// As for [`count`]; UCX gives as many bytes as it says.
unsafe extern "C" fn read(
    arg: *mut std::ffi::c_void,
    header: *const std::ffi::c_void,
    header_length: usize,
    data: *mut std::ffi::c_void,
    length: usize,
    param: *const sys::ucp_am_recv_param_t,
) -> sys::ucs_status_t {
    // SAFETY: by this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) };
    let words = bytes.as_chunks().0.iter();
    let words = words.map(|word| u64::from_ne_bytes(*word));
    std::hint::black_box(words.fold(0, u64::wrapping_add));
    // SAFETY: by this function's contract.
    unsafe { count(arg, header, header_length, data, length, param) }
}

fn active_messages(half: &Half, ucx: &Ucx) -> Outcome<f64> {
    let got = Box::new(Cell::new(0_u64));
    let fields = sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ID
        | sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_CB
        | sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ARG;
    let mut handler = sys::ucp_am_handler_param_t {
        field_mask: u64::from(fields),
        id: 3,
        flags: 0,
        cb: Some(if half.spec.verb.is_read() {
            read
        } else {
            count
        }),
        arg: (&raw const *got).cast_mut().cast(),
    };
    // SAFETY: the worker lives; the counter outlives the handler, which is taken away below.
    check(unsafe { sys::ucp_worker_set_am_recv_handler(ucx.worker, &handler) })?;
    ucx.meet()?;
    let value = count_active_messages(half, ucx, &got);
    ucx.meet()?;
    handler.cb = None;
    // SAFETY: as above.
    check(unsafe { sys::ucp_worker_set_am_recv_handler(ucx.worker, &handler) })?;
    value
}

fn count_active_messages(half: &Half, ucx: &Ucx, got: &Cell<u64>) -> Outcome<f64> {
    let (buffer, mut words) = (Memory::ordinary(half.spec.size), Memory::ordinary(8));
    let latency = half.spec.verb.is_am_latency();
    if half.is_a() {
        let mut laps = Laps::start(&half.spec);
        let mut pending: VecDeque<Request> = VecDeque::new();
        let mut sent = 0;
        loop {
            for _ in 0..laps.batch() {
                sent += 1;
                let request = ucx.send_am(&buffer)?;
                if latency {
                    ucx.wait(request)?;
                    while got.get() < sent {
                        ucx.progress();
                    }
                    continue;
                }
                pending.extend(request);
                if pending.len() >= half.spec.window() {
                    ucx.wait(pending.pop_front())?;
                }
            }
            if !laps.lap() {
                break;
            }
        }
        while let Some(request) = pending.pop_front() {
            ucx.wait(Some(request))?;
        }
        words.set_word(sent);
        ucx.wait(ucx.send(&words, STOP)?)?;
        ucx.wait(ucx.receive(&mut words, ACK)?)?;
        return Ok(if latency {
            laps.median() / 2.0
        } else {
            half.spec.size as f64 / laps.mean()
        });
    }
    let stop = ucx.receive(&mut words, STOP)?;
    let mut answered = 0;
    while stop.as_ref().is_some_and(|stop| !stop.is_done()) {
        ucx.progress();
        while latency && answered < got.get() {
            answered += 1;
            ucx.wait(ucx.send_am(&buffer)?)?;
        }
    }
    ucx.wait(stop)?;
    while got.get() < words.word() {
        ucx.progress();
    }
    ucx.wait(ucx.send(&words, ACK)?)?;
    Ok(0.0)
}

/// A window of sends against a window of receives into one buffer, as `ucx_perftest` does it.
fn stream(half: &Half, ucx: &Ucx) -> Outcome<f64> {
    let (size, window) = (half.spec.size, half.spec.window());
    let mut buffer = match half.spec.verb {
        Verb::StreamOwned => Memory::mapped(ucx, size)?,
        _ => Memory::ordinary(size),
    };
    let mut words = Memory::ordinary(8);
    let mut pending: VecDeque<Request> = VecDeque::with_capacity(window);
    if half.is_a() {
        let mut laps = Laps::start(&half.spec);
        let mut sent = 0;
        loop {
            for _ in 0..laps.batch() {
                if let Some(request) = ucx.send(&buffer, DATA)? {
                    pending.push_back(request);
                }
                sent += 1;
                if pending.len() >= window {
                    ucx.wait(pending.pop_front())?;
                }
            }
            if !laps.lap() {
                break;
            }
        }
        while let Some(request) = pending.pop_front() {
            ucx.wait(Some(request))?;
        }
        words.set_word(sent);
        ucx.wait(ucx.send(&words, STOP)?)?;
        ucx.wait(ucx.receive(&mut words, ACK)?)?;
        let mean = laps.mean();
        return Ok(match half.spec.verb {
            Verb::Rate => 1e3 / mean,
            _ => size as f64 / mean,
        });
    }
    let mut stop = ucx.receive(&mut words, STOP)?;
    let (mut received, mut total) = (0, None);
    while total != Some(received) {
        if pending.len() < window {
            match ucx.receive(&mut buffer, DATA)? {
                Some(request) => pending.push_back(request),
                None => received += 1,
            }
            continue;
        }
        // The window is full: the oldest is the first to come.
        loop {
            if pending.front().is_some_and(Request::is_done) {
                ucx.wait(pending.pop_front())?;
                received += 1;
                break;
            }
            if total.is_none() && stop.as_ref().is_none_or(Request::is_done) {
                ucx.wait(stop.take())?;
                total = Some(words.word());
                break;
            }
            if total == Some(received) {
                break;
            }
            ucx.progress();
        }
    }
    for request in pending {
        ucx.cancel(request)?;
    }
    ucx.wait(ucx.send(&words, ACK)?)?;
    Ok(0.0)
}

/// Put and get between buffers that UCX allocated; the target does nothing but progress.
fn one_sided(half: &mut Half, ucx: &Ucx) -> Outcome<f64> {
    let (size, window) = (half.spec.size, half.spec.window());
    let buffer = Memory::mapped(ucx, size)?;
    let mut words = Memory::ordinary(8);
    if !half.is_a() {
        half.link.send(&buffer.address().to_string())?;
        half.link.send_bytes(&buffer.packed_key(ucx)?)?;
        ucx.wait(ucx.receive(&mut words, STOP)?)?;
        return Ok(0.0);
    }
    let address: u64 = half.link.receive()?.parse()?;
    let packed = half.link.receive_bytes()?;
    let mut key = null_mut();
    // SAFETY: `packed` is what the peer's `ucp_rkey_pack` gave, whole.
    check(unsafe { sys::ucp_ep_rkey_unpack(ucx.endpoint, packed.as_ptr().cast(), &raw mut key) })?;
    let mut laps = Laps::start(&half.spec);
    let mut pending: VecDeque<Request> = VecDeque::with_capacity(window);
    let value = loop {
        for _ in 0..laps.batch() {
            if half.spec.verb == Verb::Get {
                // SAFETY: both ranges are `size` bytes long and stay until the wait in the next line ends.
                let status = unsafe {
                    sys::ucp_get_nbx(ucx.endpoint, buffer.ptr(), size, address, key, &ucx.param)
                };
                ucx.wait(request(status)?)?;
                continue;
            }
            if half.spec.verb == Verb::FetchAdd {
                ucx.fetch_add(&mut words, address, key)?;
                continue;
            }
            // SAFETY: both ranges are `size` bytes long and stay until the flush below.
            let status = unsafe {
                sys::ucp_put_nbx(ucx.endpoint, buffer.ptr(), size, address, key, &ucx.param)
            };
            if let Some(request) = request(status)? {
                pending.push_back(request);
            }
            if pending.len() >= window {
                ucx.wait(pending.pop_front())?;
            }
        }
        if !laps.lap() {
            while let Some(request) = pending.pop_front() {
                ucx.wait(Some(request))?;
            }
            ucx.flush()?;
            break match half.spec.verb {
                Verb::Get | Verb::FetchAdd => laps.median(),
                _ => size as f64 / laps.mean(),
            };
        }
    };
    ucx.wait(ucx.send(&words, STOP)?)?;
    // SAFETY: unpacked above, nothing uses it any more.
    unsafe { sys::ucp_rkey_destroy(key) };
    Ok(value)
}

/// How a Tokio task waits for UCX.
enum Waiting<'a> {
    /// Progress, then give way to the runtime.
    Yield,
    /// Progress until dry, arm, await the descriptor.
    Event(AsyncFd<BorrowedFd<'a>>),
}

impl<'a> Waiting<'a> {
    fn new(half: &Half, ucx: &'a Ucx) -> Outcome<Self> {
        if half.spec.variant == "yield" {
            return Ok(Self::Yield);
        }
        let mut fd: RawFd = -1;
        // SAFETY: the worker lives; `fd` is a place for an integer.
        check(unsafe { sys::ucp_worker_get_efd(ucx.worker, &raw mut fd) })?;
        // SAFETY: the descriptor is the worker's, which lives as long as 'a.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        #[allow(deprecated, reason = "the replacement is an unsafe function")]
        Ok(Self::Event(AsyncFd::with_interest(fd, Interest::READABLE)?))
    }

    async fn wait(&self, ucx: &Ucx, request: Option<Request>) -> Outcome<()> {
        let Some(request) = request else {
            return Ok(());
        };
        loop {
            while ucx.progress() != 0 {}
            if request.is_done() {
                return ucx.wait(Some(request));
            }
            match self {
                Self::Yield => tokio::task::yield_now().await,
                Self::Event(fd) => {
                    // SAFETY: the worker lives.
                    let armed = unsafe { sys::ucp_worker_arm(ucx.worker) };
                    if armed != sys::ucs_status_t_UCS_ERR_BUSY {
                        check(armed)?;
                        fd.readable().await?.clear_ready();
                    }
                }
            }
        }
    }
}

/// Context, worker and the one endpoint.
struct Ucx {
    context: sys::ucp_context_h,
    worker: sys::ucp_worker_h,
    endpoint: sys::ucp_ep_h,
    /// Empty parameters for all operations.
    param: sys::ucp_request_param_t,
}

impl Ucx {
    /// Worker addresses go over the link; nothing asks for error handling, which would take shared memory away.
    fn connect(half: &mut Half) -> Outcome<Self> {
        let mut features = sys::ucp_feature_UCP_FEATURE_TAG | sys::ucp_feature_UCP_FEATURE_RMA;
        if half.spec.verb == Verb::FetchAdd {
            features |= sys::ucp_feature_UCP_FEATURE_AMO64;
        }
        if half.spec.verb.is_am() {
            features |= sys::ucp_feature_UCP_FEATURE_AM;
        }
        if half.spec.variant == "asyncfd" {
            features |= sys::ucp_feature_UCP_FEATURE_WAKEUP;
        }
        let params = sys::ucp_params_t {
            field_mask: u64::from(sys::ucp_params_field_UCP_PARAM_FIELD_FEATURES),
            features: u64::from(features),
            ..Default::default()
        };
        let mut ucx = Self {
            context: null_mut(),
            worker: null_mut(),
            endpoint: null_mut(),
            param: sys::ucp_request_param_t::default(),
        };
        // SAFETY: valid parameters; a null configuration means the environment.
        check(unsafe {
            sys::ucp_init_version(
                sys::UCP_API_MAJOR,
                sys::UCP_API_MINOR,
                &params,
                null(),
                &mut ucx.context,
            )
        })?;
        let params = sys::ucp_worker_params_t {
            field_mask: u64::from(sys::ucp_worker_params_field_UCP_WORKER_PARAM_FIELD_THREAD_MODE),
            thread_mode: sys::ucs_thread_mode_t_UCS_THREAD_MODE_SINGLE,
            ..Default::default()
        };
        // SAFETY: the context was just made.
        check(unsafe { sys::ucp_worker_create(ucx.context, &params, &mut ucx.worker) })?;
        let (mut address, mut len) = (null_mut(), 0);
        // SAFETY: the worker was just made.
        check(unsafe { sys::ucp_worker_get_address(ucx.worker, &raw mut address, &raw mut len) })?;
        // SAFETY: the library gave `len` bytes at `address`, released in the next line.
        let mine = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) }.to_vec();
        // SAFETY: as above.
        unsafe { sys::ucp_worker_release_address(ucx.worker, address) };
        half.link.send_bytes(&mine)?;
        let theirs = half.link.receive_bytes()?;
        let params = sys::ucp_ep_params_t {
            field_mask: u64::from(sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_REMOTE_ADDRESS),
            address: theirs.as_ptr().cast(),
            ..Default::default()
        };
        // SAFETY: `theirs` is a whole worker address and stays during the call.
        check(unsafe { sys::ucp_ep_create(ucx.worker, &params, &mut ucx.endpoint) })?;
        // The wire-up has to be over at both ends before anything is timed.
        ucx.meet()?;
        Ok(ucx)
    }

    /// Both ends come here; each drives its worker until the other's word has come.
    fn meet(&self) -> Outcome<()> {
        let (words, mut got) = (Memory::ordinary(8), Memory::ordinary(8));
        let sent = self.send(&words, MEET)?;
        self.wait(self.receive(&mut got, MEET)?)?;
        self.wait(sent)
    }

    fn progress(&self) -> u32 {
        // SAFETY: the worker lives and only this thread drives it.
        unsafe { sys::ucp_worker_progress(self.worker) }
    }

    fn send(&self, buffer: &Memory, tag: u64) -> Outcome<Option<Request>> {
        // SAFETY: the buffer outlives the request (see the chapter above).
        request(unsafe {
            sys::ucp_tag_send_nbx(self.endpoint, buffer.ptr(), buffer.len, tag, &self.param)
        })
    }

    fn send_am(&self, buffer: &Memory) -> Outcome<Option<Request>> {
        // SAFETY: the buffer outlives the request (see the chapter above).
        request(unsafe {
            sys::ucp_am_send_nbx(
                self.endpoint,
                3,
                null(),
                0,
                buffer.ptr(),
                buffer.len,
                &self.param,
            )
        })
    }

    fn receive(&self, buffer: &mut Memory, tag: u64) -> Outcome<Option<Request>> {
        // SAFETY: the buffer outlives the request (see the chapter above).
        request(unsafe {
            sys::ucp_tag_recv_nbx(
                self.worker,
                buffer.ptr(),
                buffer.len,
                tag,
                u64::MAX,
                &self.param,
            )
        })
    }

    /// Adds 1 to the word at `address`; the old value comes into `words`.
    fn fetch_add(&self, words: &mut Memory, address: u64, key: sys::ucp_rkey_h) -> Outcome<()> {
        let one = 1_u64;
        let param = sys::ucp_request_param_t {
            op_attr_mask: sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_DATATYPE
                | sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_REPLY_BUFFER,
            // Eight bytes in a piece: `ucp_dt_make_contig(8)`.
            datatype: 8 << 3,
            reply_buffer: words.ptr(),
            ..Default::default()
        };
        // SAFETY: the key is of the endpoint's peer and of a word there; operand and reply stay until the wait ends.
        let status = unsafe {
            sys::ucp_atomic_op_nbx(
                self.endpoint,
                sys::ucp_atomic_op_t_UCP_ATOMIC_OP_ADD,
                (&raw const one).cast(),
                1,
                address,
                key,
                &param,
            )
        };
        self.wait(request(status)?)
    }

    fn flush(&self) -> Outcome<()> {
        // SAFETY: the endpoint lives.
        self.wait(request(unsafe {
            sys::ucp_ep_flush_nbx(self.endpoint, &self.param)
        })?)
    }

    fn wait(&self, request: Option<Request>) -> Outcome<()> {
        let Some(Request(pointer)) = request else {
            return Ok(());
        };
        loop {
            // SAFETY: the request was not freed yet.
            let status = unsafe { sys::ucp_request_check_status(pointer.as_ptr()) };
            if status != sys::ucs_status_t_UCS_INPROGRESS {
                // SAFETY: it is over, and this is its only owner.
                unsafe { sys::ucp_request_free(pointer.as_ptr()) };
                return check(status);
            }
            self.progress();
        }
    }

    fn cancel(&self, request: Request) -> Outcome<()> {
        // SAFETY: the request was not freed yet.
        unsafe { sys::ucp_request_cancel(self.worker, request.0.as_ptr()) };
        while !request.is_done() {
            self.progress();
        }
        // SAFETY: it is over, and this is its only owner.
        unsafe { sys::ucp_request_free(request.0.as_ptr()) };
        Ok(())
    }
}

impl Drop for Ucx {
    fn drop(&mut self) {
        // SAFETY: handles of this value, made in `connect`; a null one was never made.
        unsafe {
            if !self.worker.is_null() {
                sys::ucp_worker_destroy(self.worker);
            }
            if !self.context.is_null() {
                sys::ucp_cleanup(self.context);
            }
        }
    }
}

/// An operation in flight.
struct Request(NonNull<std::ffi::c_void>);

impl Request {
    fn is_done(&self) -> bool {
        // SAFETY: freed only by `wait` and `cancel`, which consume it.
        let status = unsafe { sys::ucp_request_check_status(self.0.as_ptr()) };
        status != sys::ucs_status_t_UCS_INPROGRESS
    }
}

/// Bytes that UCX may touch: from the heap, or allocated and mapped by UCX.
struct Memory {
    base: NonNull<u8>,
    len: usize,
    kind: Kind,
}

enum Kind {
    Ordinary(#[allow(dead_code, reason = "it owns the bytes")] Box<[u64]>),
    Mapped(sys::ucp_context_h, sys::ucp_mem_h),
}

impl Memory {
    fn ordinary(len: usize) -> Self {
        let mut words = vec![0x0101_0101_0101_0101_u64; len.div_ceil(8).max(1)].into_boxed_slice();
        Self {
            base: NonNull::from(&mut words[0]).cast(),
            len,
            kind: Kind::Ordinary(words),
        }
    }

    fn mapped(ucx: &Ucx, len: usize) -> Outcome<Self> {
        let params = sys::ucp_mem_map_params_t {
            field_mask: u64::from(
                sys::ucp_mem_map_params_field_UCP_MEM_MAP_PARAM_FIELD_LENGTH
                    | sys::ucp_mem_map_params_field_UCP_MEM_MAP_PARAM_FIELD_FLAGS,
            ),
            length: len.max(8),
            flags: sys::UCP_MEM_MAP_ALLOCATE,
            ..Default::default()
        };
        let mut handle = null_mut();
        // SAFETY: the context lives, the parameters are valid.
        check(unsafe { sys::ucp_mem_map(ucx.context, &params, &raw mut handle) })?;
        let mut attributes = sys::ucp_mem_attr_t {
            field_mask: u64::from(sys::ucp_mem_attr_field_UCP_MEM_ATTR_FIELD_ADDRESS),
            ..Default::default()
        };
        // SAFETY: the handle was just made.
        check(unsafe { sys::ucp_mem_query(handle, &raw mut attributes) })?;
        let base = NonNull::new(attributes.address.cast::<u8>()).ok_or("UCX gave no memory")?;
        // SAFETY: UCX allocated at least `len` bytes there; touching them makes the pages.
        unsafe { base.write_bytes(1, len) };
        Ok(Self {
            base,
            len,
            kind: Kind::Mapped(ucx.context, handle),
        })
    }

    fn packed_key(&self, ucx: &Ucx) -> Outcome<Vec<u8>> {
        let Kind::Mapped(_, handle) = self.kind else {
            return Err("only mapped memory has a key".into());
        };
        let (mut buffer, mut len) = (null_mut(), 0);
        // SAFETY: context and handle live.
        check(unsafe { sys::ucp_rkey_pack(ucx.context, handle, &raw mut buffer, &raw mut len) })?;
        // SAFETY: the library gave `len` bytes at `buffer`, released in the next line.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), len) }.to_vec();
        // SAFETY: as above.
        unsafe { sys::ucp_rkey_buffer_release(buffer) };
        Ok(bytes)
    }

    fn address(&self) -> usize {
        self.base.as_ptr().expose_provenance()
    }

    fn ptr(&self) -> *mut std::ffi::c_void {
        self.base.as_ptr().cast()
    }

    fn first(&self) -> u8 {
        // SAFETY: at least one byte is there; UCX may have written it.
        unsafe { self.base.as_ptr().read_volatile() }
    }

    fn set_first(&mut self, value: u8) {
        // SAFETY: at least one byte is there.
        unsafe { self.base.as_ptr().write_volatile(value) }
    }

    fn word(&self) -> u64 {
        // SAFETY: at least eight bytes are there, aligned to eight.
        unsafe { self.base.as_ptr().cast::<u64>().read_volatile() }
    }

    fn set_word(&mut self, value: u64) {
        // SAFETY: at least eight bytes are there, aligned to eight.
        unsafe { self.base.as_ptr().cast::<u64>().write_volatile(value) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Kind::Mapped(context, handle) = self.kind {
            // SAFETY: mapped in `mapped`; every function here drops its memory before the context goes.
            unsafe { sys::ucp_mem_unmap(context, handle) };
        }
    }
}

fn request(status: sys::ucs_status_ptr_t) -> Outcome<Option<Request>> {
    match decode_status_ptr(status) {
        Ok(pointer) => Ok(pointer.and_then(NonNull::new).map(Request)),
        Err(status) => Err(status_string(status).into()),
    }
}

fn check(status: sys::ucs_status_t) -> Outcome<()> {
    if status == sys::ucs_status_t_UCS_OK {
        Ok(())
    } else {
        Err(format!("UCX: {}", status_string(status)).into())
    }
}
