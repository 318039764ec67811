//! What instructions do.

use crate::{
    caches::{Device, LINE},
    launch::{
        Block, Frame, Kept, Launch, Stop, Thread, acquire, clear_way, drain_touching, release,
    },
    memory::{Fault, Memory},
    program::{Address, Binary, Change, Comparison, Operand, Order, Scope, Special, Type, Work},
};

/// What a thread reaches while it runs.
struct Reach<'a> {
    block: &'a mut Block,
    device: &'a Device,
    memory: &'a dyn Memory,
}

impl Launch {
    /// Runs a thread for so many instructions.
    pub(crate) fn run(
        &mut self,
        thread: &mut Thread,
        block: &mut Block,
        device: &Device,
        memory: &dyn Memory,
        turn: u64,
        changed: &mut bool,
    ) -> Result<Stop, Fault> {
        let program = std::sync::Arc::clone(&self.program);
        let mut reach = Reach {
            block,
            device,
            memory,
        };
        for _ in 0..turn {
            self.clock += 1;
            let Some(frame) = thread.frames.last_mut() else {
                return Ok(Stop::End);
            };
            let function = &program.functions[frame.function];
            let instruction = &function.code[frame.at];
            frame.at += 1;
            if let Some((register, is_true)) = instruction.guard
                && (frame.registers[usize::from(register)] == 1) != is_true
            {
                continue;
            }
            match &instruction.work {
                Work::Branch(target) => frame.at = *target,
                Work::Sleep => {
                    self.let_go(thread, reach.block, device, memory)?;
                    return Ok(Stop::Sleep);
                }
                Work::Barrier => return Ok(Stop::Barrier),
                Work::Trap => return Err(Fault::Trap),
                Work::Exit => {
                    thread.frames.clear();
                    return Ok(Stop::End);
                }
                Work::Return => {
                    let Some(ended) = thread.frames.pop() else {
                        return Ok(Stop::End);
                    };
                    let Some(frame) = thread.frames.last_mut() else {
                        return Ok(Stop::End);
                    };
                    let returned = &program.functions[ended.function].returns;
                    for (place, of) in ended.returns.iter().zip(returned) {
                        let bytes = &ended.room[of.place..of.place + of.size];
                        frame.room[*place..*place + of.size].copy_from_slice(bytes);
                    }
                }
                Work::Call {
                    function,
                    returns,
                    arguments,
                } => {
                    let callee = &program.functions[*function];
                    let mut room = vec![0; callee.room];
                    for (place, of) in arguments.iter().zip(&callee.parameters) {
                        let bytes = &frame.room[*place..*place + of.size];
                        room[of.place..of.place + of.size].copy_from_slice(bytes);
                    }
                    let called = Frame {
                        function: *function,
                        at: 0,
                        registers: vec![0; callee.registers.len()],
                        room,
                        returns: returns.clone(),
                    };
                    thread.frames.push(called);
                }
                Work::Load {
                    to,
                    of,
                    at,
                    order,
                    scope,
                } => {
                    let at = self.address(*at, thread, &reach);
                    let mut values = [0; 4];
                    let values = &mut values[..to.len()];
                    self.load(values, *of, at, (*order, *scope), thread, &mut reach)?;
                    if let Some(frame) = thread.frames.last_mut() {
                        for (to, value) in to.iter().zip(values) {
                            let value = extend(*value, *of);
                            set(frame, &function.registers, *to, value);
                        }
                    }
                }
                Work::Store {
                    from,
                    of,
                    at,
                    order,
                    scope,
                } => {
                    let at = self.address(*at, thread, &reach);
                    let mut values = [0; 4];
                    for (value, from) in values.iter_mut().zip(from) {
                        *value = self.value(*from, thread, &reach);
                    }
                    let values = &values[..from.len()];
                    *changed = true;
                    self.store(values, *of, at, (*order, *scope), thread, &mut reach)?;
                }
                Work::Atomic {
                    to,
                    change,
                    of,
                    at,
                    values,
                    order,
                    scope,
                } => {
                    let at = self.address(*at, thread, &reach);
                    let values = values.map(|value| self.value(value, thread, &reach));
                    let (was, is) = atomic(
                        *change,
                        *of,
                        at,
                        values,
                        (*order, *scope),
                        thread,
                        &mut reach,
                    )?;
                    *changed |= was != is;
                    if let (Some(to), Some(frame)) = (to, thread.frames.last_mut()) {
                        set(frame, &function.registers, *to, was);
                    }
                }
                Work::Fence(scope) => {
                    release(*scope, thread, reach.block, device, memory)?;
                    acquire(*scope, reach.block, device);
                }
                work => self.compute(work, &function.registers, thread, &reach),
            }
            // Stores are seen while their thread does other things.
            if !thread.stores.is_empty() && self.random.next().is_multiple_of(16) {
                self.let_go(thread, reach.block, device, memory)?;
            }
        }
        Ok(Stop::Time)
    }

    fn value(&self, operand: Operand, thread: &Thread, reach: &Reach<'_>) -> u64 {
        match operand {
            Operand::Number(number) => number,
            Operand::Register(register) => thread
                .frames
                .last()
                .map_or(0, |frame| frame.registers[usize::from(register)]),
            Operand::Special(special) => match special {
                Special::Thread => u64::from(thread.number),
                Special::Threads => u64::from(self.grid.threads),
                Special::Block => u64::from(reach.block.number),
                Special::Blocks => u64::from(self.grid.blocks),
                Special::Lane => u64::from(thread.number % 32),
                Special::Clock => self.clock,
                Special::Zero => 0,
                Special::One => 1,
            },
        }
    }

    fn address(&self, at: Address, thread: &Thread, reach: &Reach<'_>) -> u64 {
        self.value(at.base, thread, reach)
            .wrapping_add_signed(at.offset)
    }

    fn load(
        &mut self,
        values: &mut [u64],
        of: Type,
        at: u64,
        (order, scope): (Order, Scope),
        thread: &mut Thread,
        reach: &mut Reach<'_>,
    ) -> Result<(), Fault> {
        let (width, count) = (of.bytes(), values.len() as u64);
        aligned(at, width * count)?;
        if order == Order::Weak {
            let mut bytes = [0; 32];
            let bytes = &mut bytes[..(width * count) as usize];
            self.load_weak(at, bytes, thread, reach.block, reach.device, reach.memory)?;
            for (value, bytes) in values.iter_mut().zip(bytes.chunks(width as usize)) {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                *value = u64::from_le_bytes(word);
            }
            return Ok(());
        }
        for (value, index) in values.iter_mut().zip(0..) {
            let at = at + index * width;
            *value = strong(at, width, scope, thread, reach, &mut |_| None)?;
        }
        if order.acquires() {
            acquire(scope, reach.block, reach.device);
        }
        Ok(())
    }

    fn store(
        &mut self,
        values: &[u64],
        of: Type,
        at: u64,
        (order, scope): (Order, Scope),
        thread: &mut Thread,
        reach: &mut Reach<'_>,
    ) -> Result<(), Fault> {
        let width = of.bytes();
        aligned(at, width * values.len() as u64)?;
        let (block, device, memory) = (&mut *reach.block, reach.device, reach.memory);
        if order.releases() {
            release(scope, thread, block, device, memory)?;
        }
        let strong = (order != Order::Weak).then_some(scope);
        // As much of a vector as one store may be; a strong one is as many as it has words.
        let each = match strong {
            Some(_) => 1,
            None => (16 / width as usize).min(values.len()),
        };
        for (values, index) in values.chunks(each).zip(0..) {
            let mut bytes = [0; 16];
            for (place, value) in bytes.chunks_mut(width as usize).zip(values) {
                place.copy_from_slice(&value.to_le_bytes()[..width as usize]);
            }
            let store = Kept {
                at: at + index * width * each as u64,
                len: width * values.len() as u64,
                bytes,
                scope: strong,
            };
            self.keep(store, thread, block, device, memory)?;
        }
        if order.releases() {
            // Nothing may keep it from being seen; nor need anything.
            crate::launch::drain(thread, block, device, memory)?;
        }
        Ok(())
    }

    fn compute(&self, work: &Work, widths: &[u8], thread: &mut Thread, reach: &Reach<'_>) {
        let value = |operand: Operand| self.value(operand, thread, reach);
        let mut results = [(0, 0); 4];
        let mut count = 1;
        results[0] = match work {
            Work::LoadParameter { to, of, place } => {
                let room = thread.frames.last().map_or(&[][..], |frame| &frame.room);
                let width = of.bytes() as usize;
                count = to.len();
                for (index, (result, to)) in results.iter_mut().zip(to).enumerate() {
                    let mut word = [0; 8];
                    let from = room.get(place + index * width..).unwrap_or_default();
                    let len = from.len().min(width);
                    word[..len].copy_from_slice(&from[..len]);
                    *result = (*to, extend(u64::from_le_bytes(word), *of));
                }
                results[0]
            }
            Work::StoreParameter { from, of, place } => {
                let width = of.bytes() as usize;
                let mut values = [0; 4];
                for (into, from) in values.iter_mut().zip(from) {
                    *into = value(*from);
                }
                if let Some(frame) = thread.frames.last_mut() {
                    for (index, value) in values.iter().take(from.len()).enumerate() {
                        let at = place + index * width;
                        if let Some(room) = frame.room.get_mut(at..at + width) {
                            room.copy_from_slice(&value.to_le_bytes()[..width]);
                        }
                    }
                }
                return;
            }
            Work::Move { to, from } => (*to, value(*from)),
            Work::Pack { to, from, bits } => {
                let parts = from.iter().rev();
                let packed = parts.fold(0, |packed, from| {
                    packed << bits | value(*from) & (u64::MAX >> (64 - bits))
                });
                (*to, packed)
            }
            Work::Unpack { to, from, bits } => {
                let mut from = value(*from);
                count = to.len();
                for (result, to) in results.iter_mut().zip(to) {
                    *result = (*to, from & (u64::MAX >> (64 - bits)));
                    from = from.checked_shr(u32::from(*bits)).unwrap_or(0);
                }
                results[0]
            }
            Work::Binary {
                how,
                of,
                to,
                values,
            } => (*to, binary(*how, *of, values.map(value))),
            Work::MultiplyAdd {
                of,
                wide,
                to,
                values,
            } => {
                let [one, two, three] = values.map(value);
                let how = match wide {
                    true => Binary::MultiplyWide,
                    false => Binary::MultiplyLow,
                };
                (*to, binary(how, *of, [one, two]).wrapping_add(three))
            }
            Work::Not {
                of,
                to,
                value: of_it,
            } => (*to, extend(!value(*of_it), *of)),
            Work::Negate {
                of,
                to,
                value: of_it,
            } => (*to, extend(value(*of_it).wrapping_neg(), *of)),
            Work::Convert {
                from,
                into,
                to,
                value: of_it,
            } => (*to, extend(extend(value(*of_it), *from), *into)),
            Work::Compare {
                how,
                of,
                to,
                values,
                with,
            } => {
                let is = compare(*how, *of, values.map(value));
                let is = match with {
                    None => is,
                    Some((with, register, is_true)) => {
                        let other = (value(Operand::Register(*register)) == 1) == *is_true;
                        match with {
                            Binary::And => is && other,
                            Binary::Or => is || other,
                            _ => is != other,
                        }
                    }
                };
                (*to, u64::from(is))
            }
            Work::Select { of, to, values, by } => {
                let [one, two] = values.map(value);
                let is = value(Operand::Register(*by)) == 1;
                (*to, extend(if is { one } else { two }, *of))
            }
            _ => return,
        };
        if let Some(frame) = thread.frames.last_mut() {
            for (to, value) in &results[..count] {
                set(frame, widths, *to, *value);
            }
        }
    }
}

/// Looks at a word on the floor of a scope, and may change it there, with nothing in between.
fn strong(
    at: u64,
    width: u64,
    scope: Scope,
    thread: &mut Thread,
    reach: &mut Reach<'_>,
    change: &mut dyn FnMut(u64) -> Option<u64>,
) -> Result<u64, Fault> {
    let (block, device, memory) = (&mut *reach.block, reach.device, reach.memory);
    drain_touching(at, width, thread, block, device, memory)?;
    clear_way(at, width, scope, block, device, memory)?;
    if scope == Scope::System {
        if width < 4 {
            let mut word = [0; 8];
            memory.read(at, &mut word[..width as usize])?;
            return Ok(u64::from_le_bytes(word));
        }
        let mut value = None;
        let was = memory.load(at, width)?;
        if change(was).is_none() {
            return Ok(was);
        }
        let was = memory.update(at, width, &mut |was| {
            value = change(was);
            value.unwrap_or(was)
        })?;
        return Ok(was);
    }
    if scope == Scope::Block {
        // Threads of a block see the same lines; what was written there lies over the device's.
        let written = block
            .lines
            .take(at - at % LINE, crate::caches::mask_of(at, width));
        if let Some(written) = written {
            device.merge(memory, at - at % LINE, &written)?;
        }
    }
    if width < 4 {
        let mut word = [0; 8];
        device.fetch_part(memory, at, &mut word[..width as usize])?;
        return Ok(u64::from_le_bytes(word));
    }
    device.change(memory, at, width, change)
}

/// What a word was and is.
fn atomic(
    change: Change,
    of: Type,
    at: u64,
    [first, second]: [u64; 2],
    (order, scope): (Order, Scope),
    thread: &mut Thread,
    reach: &mut Reach<'_>,
) -> Result<(u64, u64), Fault> {
    let width = of.bytes();
    aligned(at, width)?;
    if order.releases() {
        release(scope, thread, reach.block, reach.device, reach.memory)?;
    }
    let unsigned = Type {
        signed: false,
        ..of
    };
    let [first, second] = [first, second].map(|value| extend(value, unsigned));
    let mut is = 0;
    let was = strong(at, width, scope, thread, reach, &mut |was| {
        is = match change {
            Change::Add => was.wrapping_add(first),
            Change::And => was & first,
            Change::Or => was | first,
            Change::Xor => was ^ first,
            Change::Min => binary(Binary::Min, of, [was, first]),
            Change::Max => binary(Binary::Max, of, [was, first]),
            Change::Increment if was >= first => 0,
            Change::Increment => was + 1,
            Change::Decrement if was == 0 || was > first => first,
            Change::Decrement => was - 1,
            Change::Exchange => first,
            Change::CompareExchange if was == first => second,
            Change::CompareExchange => was,
        };
        is = extend(is, unsigned);
        // What stays as it is is not written.
        (is != was).then_some(is)
    })?;
    if order.acquires() {
        acquire(scope, reach.block, reach.device);
    }
    Ok((was, is))
}

fn aligned(at: u64, len: u64) -> Result<(), Fault> {
    match at.is_multiple_of(len) && len <= 32 {
        true => Ok(()),
        false => Err(Fault::Misaligned(at, len)),
    }
}

/// As many bits as the register has.
fn set(frame: &mut Frame, widths: &[u8], to: u16, value: u64) {
    let bits = widths[usize::from(to)];
    frame.registers[usize::from(to)] = value & (u64::MAX >> (64 - bits));
}

/// A value of a type, in 64 bits.
fn extend(value: u64, of: Type) -> u64 {
    let shift = 64 - u32::from(of.bits);
    match of.signed {
        true => ((value << shift).cast_signed() >> shift).cast_unsigned(),
        false => value << shift >> shift,
    }
}

fn compare(how: Comparison, of: Type, values: [u64; 2]) -> bool {
    let [one, two] = values.map(|value| extend(value, of));
    let order = match of.signed {
        true => one.cast_signed().cmp(&two.cast_signed()),
        false => one.cmp(&two),
    };
    match how {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    }
}

fn binary(how: Binary, of: Type, values: [u64; 2]) -> u64 {
    let [one, two] = values.map(|value| extend(value, of));
    let (bits, by) = (u64::from(of.bits), values[1] & 0xFFFF_FFFF);
    let product = || match of.signed {
        true => (i128::from(one.cast_signed()) * i128::from(two.cast_signed())).cast_unsigned(),
        false => u128::from(one) * u128::from(two),
    };
    let (signed_one, signed_two) = (one.cast_signed(), two.cast_signed());
    let result = match how {
        Binary::Add => one.wrapping_add(two),
        Binary::Subtract => one.wrapping_sub(two),
        Binary::MultiplyLow => one.wrapping_mul(two),
        Binary::MultiplyHigh => (product() >> bits) as u64,
        // Twice as wide.
        Binary::MultiplyWide => return product() as u64,
        // By zero the result is not said.
        Binary::Divide if two == 0 => u64::MAX,
        Binary::Remainder if two == 0 => one,
        Binary::Divide if of.signed => signed_one.wrapping_div(signed_two).cast_unsigned(),
        Binary::Divide => one / two,
        Binary::Remainder if of.signed => signed_one.wrapping_rem(signed_two).cast_unsigned(),
        Binary::Remainder => one % two,
        Binary::And => one & two,
        Binary::Or => one | two,
        Binary::Xor => one ^ two,
        Binary::ShiftLeft if by >= bits => 0,
        Binary::ShiftLeft => one << by,
        Binary::ShiftRight if of.signed => (signed_one >> by.min(63)).cast_unsigned(),
        Binary::ShiftRight if by >= bits => 0,
        Binary::ShiftRight => one >> by,
        Binary::Min if of.signed => signed_one.min(signed_two).cast_unsigned(),
        Binary::Min => one.min(two),
        Binary::Max if of.signed => signed_one.max(signed_two).cast_unsigned(),
        Binary::Max => one.max(two),
    };
    extend(result, of)
}
