//! How long the first instruction of a function is, and where its padding lies.
//!
//! Knows the instructions with which compilers begin functions, and refuses all others: a length that is wrong by one byte would crash the
//! program. Encodings: Intel's Software Developer's Manual, volume 2, chapter 2 and appendix A.

/// The four bytes that mark where indirect jumps may arrive (CET). They stay where they are.
pub(super) const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// What stands at the entry of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// An instruction of so many bytes, whose place something else may take.
    Plain(usize),
    /// A jump, or an address loaded for one: somebody else patched the function.
    Jump,
    /// Not known here.
    Unknown,
}

/// Bytes of a leading `endbr64`: 4 or 0.
pub(super) fn landing(code: &[u8]) -> usize {
    match code.starts_with(&ENDBR64) {
        true => ENDBR64.len(),
        false => 0,
    }
}

/// The first instruction of `code`, which begins after [`landing`].
pub(super) fn first(code: &[u8]) -> First {
    instruction(code).unwrap_or(First::Unknown)
}

fn instruction(code: &[u8]) -> Option<First> {
    let mut at = 0;
    let operand16 = *code.first()? == 0x66;
    if operand16 {
        at += 1;
    }
    let rex = match *code.get(at)? {
        byte @ 0x40..=0x4f => {
            at += 1;
            byte
        }
        _ => 0,
    };
    let wide = rex & 8 != 0;
    let immediate = if operand16 && !wide { 2 } else { 4 };
    let opcode = *code.get(at)?;
    at += 1;
    let rest = &code[at..];
    let length = match opcode {
        // push and pop of a register
        0x50..=0x5f => at,
        // add, or, adc, sbb, and, sub, xor, cmp between registers and memory; test, xchg, mov, lea, movslq
        0x00..=0x3f if opcode & 7 < 4 => at + operand(rest)?,
        0x63 | 0x84..=0x8b | 0x8d => at + operand(rest)?,
        // the same with an immediate, to eax
        0x00..=0x3f if opcode & 7 == 5 => at + immediate,
        0xa9 => at + immediate,
        // with an immediate
        0x83 | 0xc0 | 0xc1 | 0x80 | 0xc6 => at + operand(rest)? + 1,
        0x81 | 0xc7 => at + operand(rest)? + immediate,
        0xd0..=0xd3 => at + operand(rest)?,
        // mov of an immediate to a register. One of eight bytes is how a far jump begins.
        0xb8..=0xbf if wide => return Some(First::Jump),
        0xb8..=0xbf => at + immediate,
        // jmp, near and short, and through memory or a register
        0xe9 | 0xeb => return Some(First::Jump),
        0xff if matches!(rest.first()? >> 3 & 7, 4 | 5) => return Some(First::Jump),
        _ => return None,
    };
    Some(match length <= code.len() {
        true => First::Plain(length),
        false => First::Unknown,
    })
}

/// Bytes of the operand that `code` begins with: ModRM, SIB and displacement.
fn operand(code: &[u8]) -> Option<usize> {
    let modrm = *code.first()?;
    let (mode, register) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return Some(1);
    }
    let mut length = 1;
    let mut base = register;
    if register == 4 {
        base = *code.get(1)? & 7;
        length += 1;
    }
    Some(match mode {
        0 if base == 5 => length + 4,
        0 => length,
        1 => length + 1,
        _ => length + 4,
    })
}

/// The bytes of NOPs that `code` ends with, as one or two long NOPs or a row of `int3`; 0 when it ends with anything else.
///
/// `code` ends where a function begins, so nothing runs into these bytes. At least one NOP of 5 bytes and more has to be among them, or 5 times
/// `int3`: the last bytes of another instruction do not look like that.
pub(super) fn padding(code: &[u8]) -> usize {
    let int3 = code.iter().rev().take_while(|byte| **byte == 0xcc).count();
    if int3 >= 5 {
        return int3;
    }
    (5..=24.min(code.len()))
        .find(|length| nops(&code[code.len() - length..]))
        .unwrap_or(0)
}

/// Whether `code` is NOPs from its first byte to its last, the first of at least 5 bytes.
fn nops(code: &[u8]) -> bool {
    let Some(first) = nop(code).filter(|length| *length >= 5) else {
        return false;
    };
    let mut at = first;
    while at < code.len() {
        match nop(&code[at..]) {
            Some(length) => at += length,
            None => return false,
        }
    }
    true
}

/// Bytes of the NOP that `code` begins with: `90`, or `0f 1f` with its operand; operand-size and `cs` prefixes before it.
fn nop(code: &[u8]) -> Option<usize> {
    let prefixes = code
        .iter()
        .take_while(|byte| matches!(byte, 0x66 | 0x2e))
        .count();
    let length = match *code.get(prefixes)? {
        0x90 => prefixes + 1,
        0x0f if *code.get(prefixes + 1)? == 0x1f => prefixes + 2 + operand(&code[prefixes + 2..])?,
        _ => return None,
    };
    (length <= code.len()).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_instructions() {
        for (code, expected) in [
            // glibc 2.36: munmap, mmap, mremap, process_madvise, sbrk
            (&[0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05][..], First::Plain(5)),
            (&[0x41, 0x89, 0xca, 0x41, 0xf7, 0xc1], First::Plain(3)),
            (&[0x48, 0x83, 0xec, 0x58, 0x4c], First::Plain(4)),
            (&[0x49, 0x89, 0xca, 0xb8, 0xb8, 1, 0, 0], First::Plain(3)),
            (&[0x41, 0x54, 0x4c, 0x8b, 0x25], First::Plain(2)),
            // push rbp; sub rsp, imm32; mov rax, [rip+d]; lea rcx, [rsp+d8]; mov rax, fs:… is refused
            (&[0x55, 0x48, 0x89, 0xe5], First::Plain(1)),
            (&[0x48, 0x81, 0xec, 0, 1, 0, 0, 0x90], First::Plain(7)),
            (&[0x48, 0x8b, 0x05, 1, 2, 3, 4, 0x90], First::Plain(7)),
            (&[0x48, 0x8d, 0x4c, 0x24, 8, 0x90], First::Plain(5)),
            (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0], First::Unknown),
            (&[0x66, 0xb8, 1, 0, 0x90], First::Plain(4)),
            (&[0x48, 0xc7, 0xc0, 9, 0, 0, 0, 0x0f], First::Plain(7)),
            (&[0x83, 0x3d, 1, 2, 3, 4, 0, 0x90], First::Plain(7)),
            (&[0x31, 0xc0, 0x90], First::Plain(2)),
            // patched: near, short, through memory, mov r11, imm64; jmp r11, mov rax, imm64; jmp rax
            (&[0xe9, 1, 2, 3, 4], First::Jump),
            (&[0xeb, 0x10, 0, 0, 0], First::Jump),
            (&[0xff, 0x25, 0, 0, 0, 0], First::Jump),
            (&[0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8], First::Jump),
            (&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], First::Jump),
            // a debugger's breakpoint, a call, syscall, ret, nothing, the half of one
            (&[0xcc, 1, 2, 3, 4], First::Unknown),
            (&[0xe8, 1, 2, 3, 4], First::Unknown),
            (&[0x0f, 0x05], First::Unknown),
            (&[0xc3], First::Unknown),
            (&[], First::Unknown),
            (&[0xb8, 0x0b], First::Unknown),
            (&[0x66], First::Unknown),
            (&[0x48], First::Unknown),
        ] {
            assert_eq!(first(code), expected, "{code:02x?}");
        }
    }

    #[test]
    fn landing_places() {
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 0x0b, 0, 0, 0];
        assert_eq!(landing(&code), 4);
        assert_eq!(first(&code[4..]), First::Plain(5));
        assert_eq!(landing(&code[1..]), 0);
        assert_eq!(landing(&[]), 0);
    }

    #[test]
    fn room_before_a_function() {
        for (code, expected) in [
            // before mremap, mmap and process_madvise of glibc 2.36
            (&[0xff, 0xc3, 0x66, 0x0f, 0x1f, 0x44, 0, 0][..], 5),
            (&[0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], 8),
            (
                &[
                    0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x66, 0x90,
                ],
                10,
            ),
            (&[0xc3, 0x0f, 0x1f, 0x44, 0, 0], 5),
            (&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc], 5),
            // too short; short ones only; the end of an instruction
            (&[0xc3, 0x0f, 0x1f, 0x40, 0], 0),
            (&[0xc3, 0x90, 0x90, 0x90, 0x90, 0x90], 0),
            (&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc], 0),
            (&[0x48, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff, 0xc3], 0),
            (&[], 0),
        ] {
            assert_eq!(padding(code), expected, "{code:02x?}");
        }
    }
}
