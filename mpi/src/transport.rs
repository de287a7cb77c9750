//! [`Processes`]: bytes between the processes of MPI, by messages that begin at once and are asked
//! for until a deadline.

use mpi::Threading;
use mpi::datatype::Equivalence;
use mpi::environment::Universe;
use mpi::ffi::{
    MPI_Comm, MPI_Datatype, MPI_Get_count, MPI_Iprobe, MPI_Irecv, MPI_Isend, MPI_Recv, MPI_Request,
    MPI_Status, MPI_Test,
};
use mpi::raw::AsRaw;
use mpi::topology::Communicator;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};
use tracecast_runtime::collective::{Lost, Message, Transport};

/// The tag of what is exchanged, and of the last message of a rank that gives up.
const EXCHANGED: i32 = 1;
const GIVEN_UP: i32 = 2;

/// How long a rank asks again and again after the last message that was done before it sleeps in
/// between, and for how long it sleeps: processes may be more than processors. The library moves
/// the bytes of a message while it is asked, and a piece of a reduction takes less.
const EAGER: Duration = Duration::from_micros(500);
const ASLEEP: Duration = Duration::from_micros(50);

/// How long a rank that gives up tries to tell the others.
const FAREWELL: Duration = Duration::from_millis(200);

/// This process.
pub(crate) struct Processes {
    /// `None` once an exchange has failed: then MPI cannot be finalised, which waits for all.
    universe: Option<Universe>,
    rank: usize,
    size: usize,
    world: MPI_Comm,
    byte: MPI_Datatype,
    /// What stands for every rank.
    any: c_int,
}

/// A message on its way.
struct Flight {
    request: MPI_Request,
    /// The other rank.
    peer: usize,
    receives: bool,
    is_done: bool,
}

impl Processes {
    /// Initialises MPI. The calling thread makes all calls from then on.
    pub(crate) fn new() -> Result<Self, String> {
        let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Funneled)
        else {
            return Err("MPI is initialised already: there is one world in a process".to_owned());
        };
        if threading < Threading::Funneled {
            return Err(format!("the MPI library takes no threads: it offers {threading:?}"));
        }
        let world = universe.world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        let (world, byte) = (world.as_raw(), u8::equivalent_datatype().as_raw());
        // SAFETY: a constant of the library.
        let any = unsafe { mpi::ffi::RSMPI_ANY_SOURCE };
        Ok(Processes { universe: Some(universe), rank, size, world, byte, any })
    }

    fn begin(
        &self,
        buffers: &mut [Vec<u8>],
        message: &Message,
        receives: bool,
    ) -> Result<Flight, Lost> {
        let Message { rank, buffer, range } = message;
        let bytes = &mut buffers[*buffer][range.clone()];
        let count = i32::try_from(bytes.len())
            .map_err(|_| Lost::Broken(format!("{} bytes in a message of MPI", bytes.len())))?;
        let (at, peer) = (bytes.as_mut_ptr().cast(), *rank as i32);
        let mut request = MaybeUninit::uninit();
        let (byte, world, to_set) = (self.byte, self.world, request.as_mut_ptr());
        let code = if receives {
            // SAFETY: `at` has `count` bytes, which stay where they are until the message is done:
            // `exchange` keeps the buffers until then, and leaks them if it fails. A room overlaps
            // nothing, by the contract of `Message`. The call sets the request.
            unsafe { MPI_Irecv(at, count, byte, peer, EXCHANGED, world, to_set) }
        } else {
            // SAFETY: as above; the bytes are read only.
            unsafe { MPI_Isend(at, count, byte, peer, EXCHANGED, world, to_set) }
        };
        succeeded(code)?;
        // SAFETY: a call that succeeds has set it.
        let request = unsafe { request.assume_init() };
        Ok(Flight { request, peer: *rank, receives, is_done: false })
    }

    /// Waits until all messages are done.
    fn wait(&self, flights: &mut [Flight], until: Instant) -> Result<(), Lost> {
        let mut moved = Instant::now();
        loop {
            let (mut is_done, mut moves) = (true, false);
            for flight in flights.iter_mut().filter(|flight| !flight.is_done) {
                let mut flag = 0;
                succeeded(test(&mut flight.request, &mut flag))?;
                flight.is_done = flag != 0;
                is_done &= flight.is_done;
                moves |= flight.is_done;
            }
            if is_done {
                return Ok(());
            }
            let now = Instant::now();
            if moves {
                moved = now;
            }
            if now - moved < EAGER {
                std::thread::yield_now();
                continue;
            }
            if let Some(told) = self.told()? {
                return Err(Lost::Told(told));
            }
            if now >= until {
                let mut waiting = flights.iter().filter(|flight| !flight.is_done);
                let late =
                    waiting.clone().find(|flight| flight.receives).or_else(|| waiting.next());
                return late.map_or(Ok(()), |flight| Err(Lost::Late(flight.peer)));
            }
            std::thread::sleep(ASLEEP);
        }
    }

    /// What a rank that gives up has told, if one has.
    fn told(&self) -> Result<Option<Vec<u8>>, Lost> {
        let (mut flag, mut status) = (0, MaybeUninit::<MPI_Status>::uninit());
        // SAFETY: all pointers are to variables of this function.
        let code =
            unsafe { MPI_Iprobe(self.any, GIVEN_UP, self.world, &mut flag, status.as_mut_ptr()) };
        succeeded(code)?;
        if flag == 0 {
            return Ok(None);
        }
        // SAFETY: a probe that has found a message has set it.
        let status = unsafe { status.assume_init() };
        let mut count = 0;
        // SAFETY: all pointers are to variables of this function.
        succeeded(unsafe { MPI_Get_count(&status, self.byte, &mut count) })?;
        let mut bytes = vec![0u8; usize::try_from(count).unwrap_or(0)];
        let (at, from) = (bytes.as_mut_ptr().cast(), status.MPI_SOURCE);
        let mut received = MaybeUninit::<MPI_Status>::uninit();
        // SAFETY: `at` has `count` bytes, as many as the message that the probe has found, and the
        // call returns when they are there.
        let code = unsafe {
            MPI_Recv(at, count, self.byte, from, GIVEN_UP, self.world, received.as_mut_ptr())
        };
        succeeded(code)?;
        Ok(Some(bytes))
    }
}

impl Transport for Processes {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(
        &mut self,
        buffers: &mut Vec<Vec<u8>>,
        send: &[Message],
        receive: &[Message],
        until: Instant,
    ) -> Result<(), Lost> {
        let mut flights = Vec::with_capacity(send.len() + receive.len());
        let mut begin = || {
            for message in receive {
                flights.push(self.begin(buffers, message, true)?);
            }
            for message in send {
                flights.push(self.begin(buffers, message, false)?);
            }
            Ok(())
        };
        let done = begin().and_then(|()| self.wait(&mut flights, until));
        if done.is_err() {
            // The library may still write there.
            std::mem::forget(std::mem::take(buffers));
        }
        done
    }

    fn give_up(&mut self, why: &[u8]) {
        // Leaked, as a rank may never take it.
        let why: &'static mut [u8] = Box::leak(why.to_vec().into_boxed_slice());
        let mut flights: Vec<MPI_Request> = Vec::new();
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            let (at, count) = (why.as_mut_ptr().cast(), why.len() as i32);
            let mut request = MaybeUninit::uninit();
            // SAFETY: `at` has `count` bytes, which are never freed. The call sets the request.
            let code = unsafe {
                MPI_Isend(
                    at,
                    count,
                    self.byte,
                    rank as i32,
                    GIVEN_UP,
                    self.world,
                    request.as_mut_ptr(),
                )
            };
            if succeeded(code).is_ok() {
                // SAFETY: a call that succeeds has set it.
                flights.push(unsafe { request.assume_init() });
            }
        }
        let until = Instant::now() + FAREWELL;
        while !flights.is_empty() && Instant::now() < until {
            flights.retain_mut(|request| {
                let mut flag = 0;
                test(request, &mut flag) == 0 && flag == 0
            });
            std::thread::sleep(ASLEEP);
        }
        // Finalising would wait for ranks that do not come.
        std::mem::forget(self.universe.take());
    }
}

/// Asks whether the message of a request is done; it then stands for none.
fn test(request: &mut MPI_Request, is_done: &mut c_int) -> c_int {
    let mut status = MaybeUninit::<MPI_Status>::uninit();
    // SAFETY: requests come from calls that have succeeded, and this is the one call that ends
    // them. All pointers are valid for it.
    unsafe { MPI_Test(request, is_done, status.as_mut_ptr()) }
}

fn succeeded(code: i32) -> Result<(), Lost> {
    if code == 0 { Ok(()) } else { Err(Lost::Broken(format!("MPI has failed with code {code}"))) }
}
