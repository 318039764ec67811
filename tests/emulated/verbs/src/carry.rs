//! How requests are carried out. Each side has its own part: the sender checks its pieces, gathers what it sends and scatters what comes; the receiver
//! checks keys, rights and states, and gives a receive away. Within one process the thread that posts does both; what is for another process
//! goes by the wire, and each process does the part that is its own.
//!
//! # Safety
//! Memory is reached only where a live registration covers it; the program keeps what it registers mapped. See the crate.

use std::time::Instant;

use crate::{
    abi::Wc,
    frame::{Answer, Frame, Request},
    plan::struck,
    wire::To,
    world::{
        ADD, CAS, ERR, Flight, Hungry, LOCAL_WRITE, QpState, READ, REMOTE_ATOMIC, REMOTE_READ,
        REMOTE_WRITE, RTR, RTS, Receive, SEND, SEND_IMM, SIGNALED, SOLICITED, Send, Stage, WRITE,
        WRITE_IMM, World, length_of,
    },
};

/// What ends a request.
pub(crate) mod status {
    pub(crate) const LEN: u32 = 1;
    pub(crate) const PROT: u32 = 4;
    pub(crate) const FLUSH: u32 = 5;
    pub(crate) const REM_INV: u32 = 9;
    pub(crate) const REM_ACCESS: u32 = 10;
    pub(crate) const REM_OP: u32 = 11;
    pub(crate) const RETRY: u32 = 12;
    pub(crate) const RNR: u32 = 13;
}

/// A receiver's word about a request.
enum Admitted {
    /// It may go on, with this receive where it takes one.
    Yes(Option<Receive>),
    /// A receive is missing, and may come.
    NotReady,
}

/// Whether a request brings bytes from the peer.
fn brings(opcode: u32) -> bool {
    matches!(opcode, READ | CAS | ADD)
}

impl World {
    /// Ends a send.
    fn end_send(&mut self, number: u32, send: &Send, status: u32) {
        let Some(qp) = self.qps.get_mut(&number) else {
            return;
        };
        qp.untold += 1;
        if status == 0 && send.flags & SIGNALED == 0 && !qp.signal_all {
            return;
        }
        let frees = std::mem::take(&mut qp.untold);
        let opcode = match send.opcode {
            WRITE | WRITE_IMM => 1,
            READ => 2,
            CAS => 3,
            ADD => 4,
            _ => 0,
        };
        let wc = Wc {
            wr_id: send.id,
            status,
            opcode,
            qp_num: number,
            ..Wc::default()
        };
        let cq = qp.send_cq;
        self.complete(cq, wc, frees, false);
    }

    /// Takes the next receive of a queue pair.
    fn receive_of(&mut self, number: u32) -> Option<Receive> {
        let qp = self.qps.get_mut(&number)?;
        if qp.srq == 0 {
            return qp.receives.pop_front();
        }
        let (at, context) = (qp.srq, qp.context());
        let srq = self.srqs.get_mut(&at)?;
        let receive = srq.receives.pop_front();
        // Told once, when fewer are left than was asked for.
        if receive.is_some() && srq.receives.len() < srq.limit as usize {
            srq.limit = 0;
            self.tell(context, at, 15);
        }
        receive
    }

    /// Moves a queue pair to its end, and flushes what it has.
    pub(crate) fn fail(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(&number) else {
            return;
        };
        qp.state = ERR;
        // An answer that still comes is to nothing.
        (qp.flight, qp.patience) = (None, None);
        let sends: Vec<Send> = qp.sends.drain(..).collect();
        let receives: Vec<Receive> = qp.receives.drain(..).collect();
        let (cq, raw, context, shares) = (qp.recv_cq, qp.raw, qp.context(), qp.srq != 0);
        for send in sends {
            self.end_send(number, &send, status::FLUSH);
        }
        for receive in receives {
            let wc = Wc {
                wr_id: receive.id,
                status: status::FLUSH,
                opcode: 128,
                qp_num: number,
                ..Wc::default()
            };
            self.complete(cq, wc, 0, false);
        }
        if shares {
            self.tell(context, raw, 16);
        }
    }

    /// Carries out what can be, of all queue pairs.
    pub(crate) fn progress(&mut self) {
        loop {
            // The world is one for all of the process: most queue pairs have nothing to send.
            let waiting = self.qps.iter().filter(|(_, qp)| !qp.sends.is_empty());
            let numbers: Vec<u32> = waiting.map(|(number, _)| *number).collect();
            let left =
                |world: &Self| -> usize { world.qps.values().map(|qp| qp.sends.len()).sum() };
            let before = left(self);
            for number in numbers {
                self.progress_one(number);
            }
            if before == left(self) {
                break;
            }
        }
        self.tell_ready();
    }

    fn progress_one(&mut self, number: u32) {
        if self.lost {
            return;
        }
        loop {
            let Some(qp) = self.qps.get_mut(&number) else {
                return;
            };
            // Requests of a queue pair are carried out one after the other.
            if qp.flight.is_some() {
                return;
            }
            let Some(send) = qp.sends.pop_front() else {
                return;
            };
            let answer = match struck("completion") {
                Some(code) => Err(code),
                None => self.carry_out(number, &send),
            };
            match answer {
                Ok(true) => self.end_send(number, &send, 0),
                Ok(false) => {
                    // Waits for a receive, or for the answer of another process.
                    if let Some(qp) = self.qps.get_mut(&number) {
                        qp.sends.push_front(send);
                    }
                    return;
                }
                Err(status) => {
                    self.end_send(number, &send, status);
                    self.fail(number);
                    return;
                }
            }
        }
    }

    /// Whether this side's pieces may be used as the request says.
    fn own_pieces(&self, pd: usize, send: &Send) -> bool {
        let access = if brings(send.opcode) { LOCAL_WRITE } else { 0 };
        let mut pieces = send.pieces.iter();
        send.inline.is_some() || pieces.all(|piece| self.covered(pd, piece, piece.lkey, access))
    }

    /// Whether it was done; not: a receive is missing, and may come, or another process has it.
    fn carry_out(&mut self, number: u32, send: &Send) -> Result<bool, u32> {
        let Some(qp) = self.qps.get(&number) else {
            return Ok(true);
        };
        let patient = qp.attr.rnr_retry == 7;
        if !self.own_pieces(qp.pd, send) {
            return Err(status::PROT);
        }
        let Ok(length) = u32::try_from(send.length()) else {
            return Err(status::LEN);
        };
        let request = Request {
            from: number,
            to: qp.attr.dest_qp_num,
            device: qp.peer_device.unwrap_or(usize::MAX) as u32,
            first_packet: qp.attr.sq_psn,
            opcode: send.opcode,
            solicited: send.flags & SOLICITED != 0,
            patient,
            imm: send.imm,
            length,
            key: match send.opcode {
                CAS | ADD => send.wr[3] as u32,
                _ => send.wr[1] as u32,
            },
            address: send.wr[0],
            operands: [send.wr[1], send.wr[2]],
        };
        if let Some(slot) = self.abroad(request.to) {
            let data = match brings(send.opcode) {
                true => Vec::new(),
                // SAFETY: the pieces were found covered; inline bytes are ours.
                false => unsafe { self.gather(send) },
            };
            self.sequence += 1;
            let sequence = self.sequence;
            let frame = Frame::Request {
                sequence,
                request,
                data,
            };
            self.post(To::Process(slot), frame.encode());
            if let Some(qp) = self.qps.get_mut(&number) {
                qp.flight = Some(Flight {
                    slot,
                    sequence,
                    stage: Stage::Asked,
                });
                let until = Instant::now() + qp.all_tries();
                qp.patience.get_or_insert(until);
            }
            return Ok(false);
        }
        let receive = match self.admit(&request)? {
            Admitted::Yes(receive) => receive,
            Admitted::NotReady if patient => return Ok(false),
            Admitted::NotReady => return Err(status::RNR),
        };
        let data = match brings(send.opcode) {
            true => Vec::new(),
            // SAFETY: the pieces were found covered; inline bytes are ours.
            false => unsafe { self.gather(send) },
        };
        let data = self.execute(&request, receive, &data)?;
        if brings(send.opcode) {
            // SAFETY: the pieces were found covered.
            unsafe { self.scatter(&data, &send.pieces) };
        }
        Ok(true)
    }

    /// The receiver's checks, in the order in which a packet meets them.
    fn admit(&mut self, request: &Request) -> Result<Admitted, u32> {
        let number = request.to;
        let Some(peer) = self.qps.get(&number) else {
            return Err(status::RETRY);
        };
        let (raw, context) = (peer.raw, peer.context());
        let device = self.contexts.get(&context).map(|context| context.device);
        // Who is not connected to the sender, expects other packets, or is not at the port that they go to, answers none of them.
        if !matches!(peer.state, RTR | RTS)
            || peer.attr.dest_qp_num != request.from
            || peer.attr.rq_psn != request.first_packet
            || device.is_none_or(|device| device as u32 != request.device)
        {
            return Err(status::RETRY);
        }
        let need = match request.opcode {
            WRITE | WRITE_IMM => Some((REMOTE_WRITE, request.length)),
            READ => Some((REMOTE_READ, request.length)),
            CAS | ADD => Some((REMOTE_ATOMIC, 8)),
            _ => None,
        };
        // The queue pair's rights are looked at first, whatever the length; of no bytes the key is not.
        if let Some((need, length)) = need
            && (peer.attr.qp_access_flags & need == 0
                || length > 0 && !self.covered(peer.pd, &request.far(length), request.key, need))
        {
            self.tell(context, raw, 3);
            self.fail(number);
            return Err(status::REM_ACCESS);
        }
        if !matches!(request.opcode, SEND | SEND_IMM | WRITE_IMM) {
            return Ok(Admitted::Yes(None));
        }
        Ok(match self.receive_of(number) {
            None => Admitted::NotReady,
            some => Admitted::Yes(some),
        })
    }

    /// The receiver's part of a request that was admitted: `data` is what it sends; what it brings comes back.
    fn execute(
        &mut self,
        request: &Request,
        receive: Option<Receive>,
        data: &[u8],
    ) -> Result<Vec<u8>, u32> {
        let number = request.to;
        let Some((pd, cq)) = self.qps.get(&number).map(|qp| (qp.pd, qp.recv_cq)) else {
            return Err(status::RETRY);
        };
        let (length, far) = (request.length, request.far(request.length));
        let mut wc = Wc {
            opcode: 128,
            byte_len: length,
            qp_num: number,
            src_qp: request.from,
            ..Wc::default()
        };
        if matches!(request.opcode, SEND_IMM | WRITE_IMM) {
            wc.wc_flags = 2;
            wc.imm_data = request.imm;
        }
        let mut brought = Vec::new();
        // SAFETY: every range was found covered by a live registration.
        unsafe {
            match request.opcode {
                WRITE | WRITE_IMM => {
                    if length > 0 {
                        self.scatter(data, &[far]);
                    }
                    wc.opcode = 129;
                }
                READ => {
                    self.arrive(self.device_of(request.key));
                    if length > 0 {
                        brought = self.load(&far);
                    }
                }
                CAS | ADD => {
                    if !request.address.is_multiple_of(8) || length != 8 {
                        return Err(status::REM_INV);
                    }
                    let Some(old) = self.atomic(request) else {
                        return Err(status::REM_OP);
                    };
                    brought = old.to_ne_bytes().to_vec();
                }
                _ => {
                    let pieces = receive.as_ref().map_or(&[][..], |receive| &receive.pieces);
                    let fine = pieces
                        .iter()
                        .all(|piece| self.covered(pd, piece, piece.lkey, LOCAL_WRITE));
                    wc.status = match (fine, length_of(pieces) >= u64::from(length)) {
                        (false, _) => status::PROT,
                        (_, false) => status::LEN,
                        _ => 0,
                    };
                    if wc.status == 0 {
                        self.scatter(data, pieces);
                    }
                }
            }
        }
        if let Some(receive) = receive {
            wc.wr_id = receive.id;
            let failed = wc.status;
            self.complete(cq, wc, 0, request.solicited);
            if failed != 0 {
                self.fail(number);
                return Err(if failed == status::LEN {
                    status::REM_INV
                } else {
                    status::REM_OP
                });
            }
        }
        Ok(brought)
    }
}

/// What comes by the wire.
impl World {
    /// Which other process has a queue pair; `None`: nobody, or this one.
    fn abroad(&self, number: u32) -> Option<u32> {
        let slot = number >> 16 & 0xff;
        let own = self.wire.as_ref()?.slot;
        (slot != 0 && slot != own).then_some(slot)
    }

    /// Carries out the receiver's part of another process's request; the answer, or none where everything gets lost.
    pub(crate) fn serve(
        &mut self,
        connection: u64,
        sequence: u64,
        request: &Request,
        data: &[u8],
    ) -> Option<Frame> {
        if self.lost {
            return None;
        }
        let (status, data) = match self.admit(request) {
            Ok(Admitted::Yes(receive)) => match self.execute(request, receive, data) {
                Ok(data) => (Answer::Done, data),
                Err(status) => (Answer::Failed(status), Vec::new()),
            },
            Ok(Admitted::NotReady) => {
                if request.patient {
                    self.hungry.push(Hungry {
                        connection,
                        sequence,
                        from: request.from,
                        to: request.to,
                    });
                }
                (Answer::NotReady, Vec::new())
            }
            Err(status) => (Answer::Failed(status), Vec::new()),
        };
        self.progress();
        Some(Frame::Answer {
            number: request.from,
            sequence,
            answer: status,
            data,
        })
    }

    /// Has those who wait for a receive try again where one is there now, or where none will be.
    fn tell_ready(&mut self) {
        if self.hungry.is_empty() {
            return;
        }
        let (mut kept, mut ready) = (Vec::new(), Vec::new());
        for one in std::mem::take(&mut self.hungry) {
            let waits = self.qps.get(&one.to).is_some_and(|qp| {
                let here = match self.srqs.get(&qp.srq) {
                    Some(srq) => &srq.receives,
                    None => &qp.receives,
                };
                matches!(qp.state, RTR | RTS) && here.is_empty()
            });
            if waits { &mut kept } else { &mut ready }.push(one);
        }
        self.hungry = kept;
        for one in ready {
            let frame = Frame::Ready {
                number: one.from,
                sequence: one.sequence,
            };
            self.post(To::Connection(one.connection), frame.encode());
        }
    }

    /// The answer to a request that is under way to the process in `slot`. One that is of nothing any more is passed over.
    ///
    /// # Errors
    /// It is no answer to that request.
    pub(crate) fn answered(
        &mut self,
        slot: u32,
        number: u32,
        sequence: u64,
        answer: Answer,
        data: &[u8],
    ) -> Result<(), ()> {
        let Some(qp) = self.qps.get_mut(&number) else {
            return Ok(());
        };
        let (pd, patient) = (qp.pd, qp.attr.rnr_retry == 7);
        match &mut qp.flight {
            Some(flight) if flight.slot == slot && flight.sequence == sequence => {
                if answer == Answer::NotReady && patient {
                    flight.stage = Stage::Waits;
                    return Ok(());
                }
                if answer == Answer::Failed(status::RETRY) {
                    self.unanswered(number);
                    return Ok(());
                }
            }
            _ => return Ok(()),
        }
        let Some(send) = qp.sends.front() else {
            return Err(());
        };
        let awaited = match (answer, brings(send.opcode)) {
            (Answer::Done, true) => send.length(),
            _ => 0,
        };
        if data.len() as u64 != awaited {
            return Err(());
        }
        (qp.flight, qp.patience) = (None, None);
        let Some(send) = qp.sends.pop_front() else {
            return Err(());
        };
        let status = match answer {
            Answer::Done if awaited == 0 => 0,
            // A registration may have ended meanwhile.
            Answer::Done if !self.own_pieces(pd, &send) => status::PROT,
            Answer::Done => {
                // SAFETY: the pieces were found covered just now.
                unsafe { self.scatter(data, &send.pieces) };
                0
            }
            Answer::NotReady => status::RNR,
            Answer::Failed(status) => status,
        };
        self.end_send(number, &send, status);
        if status != 0 {
            self.fail(number);
        }
        self.progress();
        Ok(())
    }

    /// A receive may be there for a request that waits for one.
    pub(crate) fn ready(&mut self, slot: u32, number: u32, sequence: u64) {
        if let Some(qp) = self.qps.get_mut(&number)
            && qp.flight.as_ref().is_some_and(|flight| {
                let this = flight.slot == slot && flight.sequence == sequence;
                this && flight.stage == Stage::Waits
            })
        {
            qp.flight = None;
            self.progress();
        }
    }

    /// No packet reaches the process in `slot`, nor comes from it.
    pub(crate) fn unreachable(&mut self, slot: u32) {
        if let Some(wire) = &mut self.wire {
            wire.outbox.retain(|(to, _)| *to != To::Process(slot));
        }
        for number in self.under_way(|flight| flight.slot == slot) {
            self.unanswered(number);
        }
    }

    /// The queue pairs of which a request is under way.
    fn under_way(&self, of: impl Fn(&Flight) -> bool) -> Vec<u32> {
        let all = self.qps.iter();
        let those = all.filter(|(_, qp)| qp.flight.as_ref().is_some_and(&of));
        those.map(|(number, _)| *number).collect()
    }

    /// Nobody answers a request: it is sent again until it was often enough. Not at once, as its peer may still be on the way to where it
    /// receives; and a peer that has all that it wants may be gone before this side has polled what was answered.
    fn unanswered(&mut self, number: u32) {
        if let Some(qp) = self.qps.get_mut(&number) {
            let again = Instant::now() + qp.timeout();
            if let Some(flight) = &mut qp.flight {
                flight.stage = Stage::Unanswered(again);
            }
        }
    }

    /// Sends again what nobody answered, or ends it; when there is something next.
    pub(crate) fn try_again(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let due = |qp: &QpState| match qp.flight.as_ref()?.stage {
            // The last try's time may end before the next one.
            Stage::Unanswered(again) => Some(qp.patience.map_or(again, |until| until.min(again))),
            _ => None,
        };
        let is_due = |qp: &QpState| due(qp).is_some_and(|due| due <= now);
        let all = self.qps.iter().filter(|(_, qp)| is_due(qp));
        let numbers: Vec<u32> = all.map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(qp) = self.qps.get_mut(&number) else {
                continue;
            };
            qp.flight = None;
            if qp.patience.is_some_and(|until| until > now) {
                self.progress_one(number);
                continue;
            }
            let send = qp.sends.pop_front();
            if let Some(send) = send {
                self.end_send(number, &send, status::RETRY);
            }
            self.fail(number);
            self.progress();
        }
        self.qps.values().filter_map(due).min()
    }

    /// Whoever asked by this connection is gone.
    pub(crate) fn hung_up(&mut self, connection: u64) {
        self.hungry.retain(|one| one.connection != connection);
    }
}
