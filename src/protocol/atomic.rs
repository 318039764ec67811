//! How an atomic operation is written in its message: operation, width, and whether the old value is asked for, in one number.

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::control,
    types::{AtomicOp, AtomicRequest, Width},
};

/// Set when the old value is asked for.
const FETCH: u32 = 1 << 16;

const OPS: [AtomicOp; 6] = [
    AtomicOp::Add,
    AtomicOp::And,
    AtomicOp::Or,
    AtomicOp::Xor,
    AtomicOp::Swap,
    AtomicOp::CompareSwap,
];

/// The number of a request.
pub(crate) fn code(request: &AtomicRequest, fetch: bool) -> u32 {
    request.op as u32 | (request.width.bytes() as u32) << 8 | if fetch { FETCH } else { 0 }
}

/// What a message asks for, and whether for the old value.
/// Errors: `Protocol` for an operation or width that there is not.
pub(crate) fn request(body: &control::Atomic) -> Result<(AtomicRequest, bool)> {
    let bad = |what| Error::new(ErrorKind::Protocol, what);
    let op = OPS
        .into_iter()
        .find(|op| *op as u32 == body.code & 0xff)
        .ok_or_else(|| bad("an atomic operation that there is not"))?;
    let width = match (body.code & !FETCH) >> 8 {
        4 => Width::Four,
        8 => Width::Eight,
        _ => return Err(bad("an atomic operation of a width that there is not")),
    };
    let request = AtomicRequest {
        op,
        width,
        operand: body.operand,
        compare: body.compare,
    };
    Ok((request, body.code & FETCH != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(code: u32) -> control::Atomic {
        control::Atomic {
            generation: 1,
            offset: 2,
            operand: 3,
            compare: 4,
            slot: 5,
            code,
        }
    }

    #[test]
    fn codes_go_round() {
        for op in OPS {
            for width in [Width::Four, Width::Eight] {
                for fetch in [false, true] {
                    let asked = AtomicRequest {
                        op,
                        width,
                        operand: 3,
                        compare: 4,
                    };
                    let read = request(&body(code(&asked, fetch))).expect("a request");
                    assert_eq!(read, (asked, fetch));
                }
            }
        }
    }

    #[test]
    fn foreign_codes_are_refused() {
        for code in [
            0,
            1,
            0x800,
            0x807,
            0x8ff,
            0x101,
            0x1001,
            0x2_0801,
            0x8000_0801,
            u32::MAX,
        ] {
            let error = request(&body(code)).expect_err("foreign");
            assert_eq!(error.kind(), ErrorKind::Protocol, "{code:#x}");
        }
        request(&body(0x1_0806)).expect("of this version");
    }
}
