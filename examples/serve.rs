//! A model behind HTTP: requests are answered in batches, by several threads over one set of
//! weights, which a thread replaces once a second.
//!
//! `cargo run --release --example serve [ADDRESS]`, then
//! `curl -d '[0.5, -1.0, 2.0, 0.0]' localhost:8080`. With `--try N` it asks itself N times and
//! ends.
//!
//! What is shown: no answer mixes two versions, a batch is what has come while the last one ran,
//! and a request that makes no sense is answered with what is wrong with it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;
use tiny_http::{Request, Response, Server};
use tracecast::nn::{Context, Linear, Module, Relu, Sequential};
use tracecast::prelude::*;
use tracecast::{Jit, Published, Session, Weights};

/// Numbers of a request, and of an answer.
const WIDTH: usize = 4;
/// Rows that are answered at once, at most.
const BATCH: usize = 32;
/// Threads that run the model.
const WORKERS: usize = 2;
/// The longest request that is read, in bytes.
const LONGEST: u64 = 4096;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tries = match &arguments[..] {
        [flag, count] if flag == "--try" => Some(count.parse::<usize>()?),
        _ => None,
    };
    let address = match (tries, arguments.first()) {
        (Some(_), _) => "127.0.0.1:0",
        (None, given) => given.map_or("127.0.0.1:8080", String::as_str),
    };
    let server = Arc::new(Server::http(address)?);
    let model = Sequential::new()
        .named("hidden", Linear::new(WIDTH, 64))
        .named("relu", Relu)
        .named("out", Linear::new(64, WIDTH));
    let mut store = Store::new();
    model.init(&mut store, 0)?;
    let predict = jit(Options::new().threads(1), move |t| {
        t.output("y", model.forward(&Context::evaluation(t), t.input("x")));
    });
    // Every number of rows has a plan, and all of them share their code.
    let served = Service {
        predict: predict.sizes("x: [rows, _]"),
        weights: Published::new(store.snapshot()),
    };
    let at = server.server_addr().to_ip().ok_or("it listens on a network address")?;
    writeln!(std::io::stdout(), "listening on http://{at}")?;
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| served.work(&server));
        }
        let (done, is_done) = channel();
        let (serving, store) = (&served, &mut store);
        scope.spawn(move || serving.renew(store, is_done));
        let asked = match tries {
            Some(count) => ask(at, count),
            None => loop {
                thread::park();
            },
        };
        for _ in 0..WORKERS {
            server.unblock();
        }
        drop::<Sender<()>>(done);
        asked
    })
}

/// What all threads share.
struct Service {
    predict: Jit,
    weights: Published,
}

impl Service {
    /// Answers requests until the server is told to stop.
    fn work(&self, server: &Server) {
        let mut session = Session::new();
        while let Ok(first) = server.recv() {
            let mut batch = vec![first];
            // What is there already; nobody waits for more.
            while batch.len() < BATCH
                && let Ok(Some(next)) = server.try_recv()
            {
                batch.push(next);
            }
            self.answer(batch, &mut session);
        }
    }

    /// Answers a batch, all of it by one version of the weights.
    fn answer(&self, batch: Vec<Request>, session: &mut Session) {
        let mut rows: Vec<f32> = Vec::new();
        let mut asked = Vec::new();
        for mut request in batch {
            match numbers(&mut request) {
                Ok(row) => {
                    rows.extend(row);
                    asked.push(request);
                }
                Err(why) => reply(request, 400, why),
            }
        }
        if asked.is_empty() {
            return;
        }
        match self.run(&self.weights.current(), session, &rows) {
            Ok(answers) => {
                for (request, row) in asked.into_iter().zip(answers) {
                    reply(request, 200, format!("{row:?}"));
                }
            }
            Err(error) => asked.into_iter().for_each(|one| reply(one, 500, error.to_string())),
        }
    }

    fn run(
        &self,
        weights: &Weights,
        session: &mut Session,
        rows: &[f32],
    ) -> tracecast::Result<Vec<Vec<f32>>> {
        let x = Tensor::new([rows.len() / WIDTH, WIDTH], rows)?;
        let out = self.predict.run_on(weights, session, &[("x", &x)])?;
        out["y"].to_rows::<f32>()
    }

    /// Publishes other weights once a second, as a training would, until it is told to stop.
    fn renew(&self, store: &mut Store, done: Receiver<()>) {
        let second = Duration::from_secs(1);
        while done.recv_timeout(second) == Err(RecvTimeoutError::Timeout) {
            let next = store.get("out.bias").and_then(|bias| {
                let moved: Vec<f32> = bias.to_vec::<f32>()?.iter().map(|v| v + 0.01).collect();
                store.set("out.bias", &Tensor::new([WIDTH], &moved)?)
            });
            if let Err(error) = next {
                drop(writeln!(std::io::stderr(), "weights stay as they are: {error}"));
                return;
            }
            self.weights.publish(store.snapshot());
        }
    }
}

/// The numbers of a request, such as `[0.5, -1.0, 2.0, 0.0]`.
fn numbers(request: &mut Request) -> Result<Vec<f32>, String> {
    let mut text = String::new();
    let read = request.as_reader().take(LONGEST).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    let row: Vec<f32> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    match row.len() {
        WIDTH => Ok(row),
        found => Err(format!("expected {WIDTH} numbers, found {found}")),
    }
}

/// Answers; a client that went away is no failure.
fn reply(request: Request, status: u16, text: String) {
    drop(request.respond(Response::from_string(text).with_status_code(status)));
}

/// Sends requests, four at a time, and something senseless in between.
fn ask(at: std::net::SocketAddr, count: usize) -> Result<(), Failure> {
    let one = |body: &str| -> Result<String, Failure> {
        let mut stream = TcpStream::connect(at)?;
        let length = body.len();
        write!(
            stream,
            "POST / HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    thread::scope(|scope| {
        let caller = |first: usize| {
            for i in (first..count).step_by(4) {
                let answer = one(&format!("[{i}.5, -1.0, 2.0, 0.0]"))?;
                let row = answer.rsplit("\r\n\r\n").next().unwrap_or_default();
                if serde_json::from_str::<Vec<f32>>(row)?.len() != WIDTH {
                    return Err(format!("expected {WIDTH} numbers, found {answer}").into());
                }
            }
            Ok::<_, Failure>(())
        };
        let callers: Vec<_> = (0..4).map(|first| scope.spawn(move || caller(first))).collect();
        let wrong = one("[1.0, 2.0]")?;
        if !wrong.starts_with("HTTP/1.1 400") || !wrong.ends_with("expected 4 numbers, found 2") {
            return Err(format!("a request that makes no sense was answered with {wrong}").into());
        }
        for caller in callers {
            caller.join().map_err(|_| "a thread that asked panicked")??;
        }
        writeln!(std::io::stdout(), "{count} answers")?;
        Ok(())
    })
}
