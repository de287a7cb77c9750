//! [`Options`]: how a program is traced, rewritten and compiled, and where it runs.

mod read;

use crate::device_context::DeviceContext;
use crate::report::Progress;
use crate::setters::setters;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
#[cfg(feature = "cpu")]
use tracecast_codegen::Vectors;
use tracecast_ir::Verified;
use tracecast_ir::policy::PolicySet;
use tracecast_passes::Precision;
use tracecast_runtime::{Device, Registry};

/// What sees the program after each pass, under the name of the pass.
pub type Observer = dyn Fn(&str, &Verified) + Send + Sync;

/// What is told how far a compilation is.
pub type ProgressHook = dyn Fn(&Progress<'_>) + Send + Sync;

/// How a program is traced, rewritten and compiled, and where it runs.
///
/// ```
/// use tracecast::Options;
///
/// let options = Options::new().device("reference").keep_history(true);
/// assert_eq!(options.target()?.name(), "reference");
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone)]
pub struct Options {
    device: Choice,
    threads: usize,
    #[cfg(feature = "cpu")]
    vectors: Vectors,
    code_cache: Option<PathBuf>,
    keep_weights: bool,
    reuse_outputs: bool,
    precision: Precision,
    fold: bool,
    /// Those of the device if none were given.
    policies: Option<Arc<PolicySet>>,
    observer: Option<Arc<Observer>>,
    progress: Option<Arc<ProgressHook>>,
    keep_history: bool,
    strict: bool,
    store_all: bool,
    plan_memory: bool,
    seed: u64,
    programs: usize,
    program_bytes: usize,
    memory_limit: usize,
    compile_threads: usize,
    sizes: usize,
    infers_sizes: bool,
    bucket: usize,
    registry: Option<Arc<Registry>>,
    fallback: Option<String>,
    opened: Arc<Opened>,
}

/// What is found out once.
#[derive(Default)]
struct Opened {
    device: OnceLock<Arc<dyn Device>>,
    known: OnceLock<(DeviceContext, Arc<PolicySet>)>,
}

#[derive(Clone, Debug)]
enum Choice {
    Named(String),
    Given(Arc<dyn Device>),
}

impl Default for Options {
    fn default() -> Self {
        Options::new()
    }
}

impl Options {
    /// The CPU (the reference device in a build without it) with one thread per core, PyTorch's
    /// policies, every pass.
    pub fn new() -> Self {
        Options {
            device: Choice::Named(
                if cfg!(feature = "cpu") { "cpu" } else { "reference" }.to_owned(),
            ),
            threads: 0,
            #[cfg(feature = "cpu")]
            vectors: Vectors::Native,
            code_cache: None,
            keep_weights: true,
            reuse_outputs: true,
            precision: Precision::default(),
            fold: true,
            policies: None,
            observer: None,
            progress: None,
            keep_history: false,
            store_all: false,
            plan_memory: true,
            strict: false,
            seed: 0,
            programs: 8,
            program_bytes: usize::MAX,
            memory_limit: usize::MAX,
            compile_threads: 0,
            sizes: 64,
            infers_sizes: true,
            bucket: 1 << 20,
            registry: None,
            fallback: None,
            opened: Arc::default(),
        }
    }

    /// On the device of that name: `cpu`, `reference`, which interprets, or a registered one.
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Choice::Named(name.into());
        self.closed()
    }

    /// With devices, and what they say about autocast, from this registry instead of
    /// [that of the process](Registry::global).
    #[must_use]
    pub fn registry(mut self, registry: &Arc<Registry>) -> Self {
        self.registry = Some(registry.clone());
        self.closed()
    }

    /// On this device.
    #[must_use]
    pub fn on(mut self, device: Arc<dyn Device>) -> Self {
        self.device = Choice::Given(device);
        self.closed()
    }

    /// With another device for the kernels that the device refuses: `reference`, `cpu`, or a
    /// registered one without a queue. Without one, as is the default, a refused kernel is an error
    /// that names all of them.
    ///
    /// Each launch there copies what it reads, and copies back what it writes.
    /// [`CompileReport::fallback`](crate::CompileReport::fallback) and
    /// [`Explanation::fallback`](crate::explain::Explanation::fallback) list these launches.
    #[must_use]
    pub fn fallback(mut self, device: impl Into<String>) -> Self {
        self.fallback = Some(device.into());
        self.closed()
    }

    /// With this many threads of the CPU, 0 for one per core. Results do not depend on it.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self.closed()
    }

    /// With these vector instructions of the CPU; its best ones by default. Results do not depend
    /// on it.
    ///
    /// ```
    /// use tracecast::{Options, Vectors};
    ///
    /// let device = Options::new().vectors(Vectors::Portable).target()?;
    /// assert!(format!("{device:?}").contains("portable"));
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[cfg(feature = "cpu")]
    #[must_use]
    pub fn vectors(mut self, vectors: Vectors) -> Self {
        self.vectors = vectors;
        self.closed()
    }

    /// With compiled kernels of the CPU kept in a folder, for the next process that compiles the
    /// same.
    ///
    /// The folder is made if it is not there. What is read from it will be run, so only the user of
    /// this process may be able to write to it, and a file that anything is odd about is compiled
    /// anew with a word in [`CompileReport::warnings_of_cache`]. Files are for one version of this
    /// library and one kind of CPU; beyond 256 MiB those go that were used longest ago.
    ///
    /// [`CompileReport::warnings_of_cache`]: crate::CompileReport::warnings_of_cache
    #[must_use]
    pub fn code_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.code_cache = Some(folder.into());
        self.closed()
    }

    /// With packed copies of weights kept by the CPU from run to run, as is the default, or
    /// without.
    ///
    /// A product of few rows takes less time to multiply by a weight than to bring it into the
    /// order and dtype for that. So programs that only read a weight, such as an evaluation, do it
    /// once for as long as the weight stays the same; any change of it in the store is noticed. A
    /// training step does it once for a weight that it reads at every position. Results do not
    /// depend on it. The copy takes less than twice the memory of the weight, mostly as much or
    /// half, see [`Executable::kept_bytes`](crate::Executable::kept_bytes).
    ///
    /// ```
    /// use tracecast::prelude::*;
    ///
    /// let types = [TensorType::new(DType::F32, [20, 64]), TensorType::new(DType::F32, [64, 96])];
    /// let program = |options: Options| {
    ///     let graph = trace("head", |t| {
    ///         let (x, w) = (t.input_of("x", types[0].clone()), t.param_of("w", types[1].clone()));
    ///         t.output("y", autocast(t, "cpu", DType::BF16, || x.matmul(w)));
    ///     })?;
    ///     compile(graph, &options)
    /// };
    /// assert!(program(Options::new())?.kept_bytes() >= 64 * 96 * 2);
    /// assert_eq!(program(Options::new().keep_weights(false))?.kept_bytes(), 0);
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[must_use]
    pub fn keep_weights(mut self, keep: bool) -> Self {
        self.keep_weights = keep;
        self.closed()
    }

    setters! {
        /// With results written to the memory of earlier ones, as is the default, or each to new
        /// memory.
        ///
        /// A program keeps the last result of each output, and writes the next one there once
        /// nobody else holds it. A caller that still holds it gets a second piece of memory, and
        /// the two take turns. `false` frees every result with the caller's: that pays where
        /// results are large and runs are far apart.
        ///
        /// ```
        /// use tracecast::prelude::*;
        ///
        /// let double = jit(Options::new().reuse_outputs(false), |t| t.output("y", t.input("x") * 2.0));
        /// let x = Tensor::rand([1 << 20], 0)?;
        /// let y = double.run(&mut Store::new(), &[("x", &x)])?;
        /// drop(y); // 4 MiB go back to the system here
        /// # Ok::<(), tracecast::Error>(())
        /// ```
        reuse_outputs(reuse: bool) => reuse_outputs = reuse;
        /// With kernels in the order that holds fewer bytes between them, as is the default, or in
        /// the order of recording.
        ///
        /// A training step then updates each parameter of at least 1 MiB once its gradient is
        /// computed. Gradients are therefore not all in memory at once. Results have the same bits.
        /// [`PeakNote`](crate::explain::PeakNote) has the bytes of both orders.
        ///
        /// ```
        /// use tracecast::nn::{Linear, Module, Sequential};
        /// use tracecast::prelude::*;
        ///
        /// let peak = |plan: bool| {
        ///     let layers = (0..8).fold(Sequential::new(), |layers, _| layers.then(Linear::new(512, 512)));
        ///     let step = TrainStep::new(layers, |t, model| model.forward(t.input("x")).mean(()))
        ///         .optimizer(Sgd::new(0.1))
        ///         .options(Options::new().plan_memory(plan))
        ///         .build()?;
        ///     let mut store = Store::new();
        ///     step.init(&mut store, 0)?;
        ///     let x = Tensor::rand([8, 512], 0)?;
        ///     Ok::<_, tracecast::Error>(step.jit().prepare(&store, &[("x", &x)])?.peak_bytes)
        /// };
        /// assert!(2 * peak(true)? < peak(false)?);
        /// # Ok::<(), tracecast::Error>(())
        /// ```
        plan_memory(plan: bool) => plan_memory = plan;
        /// With another treatment of rounding points: `exact`, the default, rounds wherever
        /// PyTorch's ops do, `optimised` at a subset of these points. See [`Precision`].
        ///
        /// ```
        /// use tracecast::prelude::*;
        /// use tracecast::Precision;
        ///
        /// // In bf16 256 + 1 is 256, unless the sum stays in f32 until it is stored.
        /// let x = Tensor::new([1], &[256.0f32])?.cast(DType::BF16)?;
        /// for (precision, expected) in [(Precision::Exact, 0.0), (Precision::Optimised, 1.0)] {
        ///     let options = Options::new().device("reference").precision(precision);
        ///     let program = jit(options, |t| t.output("y", (t.input("x") + 1.0) - 256.0));
        ///     let y = program.run(&mut Store::new(), &[("x", &x)])?;
        ///     assert_eq!(y["y"].cast(DType::F32)?.to_vec::<f32>()?, [expected]);
        /// }
        /// # Ok::<(), tracecast::Error>(())
        /// ```
        precision(precision: Precision) => precision = precision;
        /// With or without the passes that only make programs faster: values are the same.
        fold(fold: bool) => fold = fold;
        /// Under other autocast policies than those of the device. To add rules to those, start
        /// with `options.policies().as_ref().clone()`.
        with_policies(policies: impl Into<Arc<PolicySet>>) => policies = Some(policies.into());
        /// With an observer of the program after each pass.
        observer(observer: impl Fn(&str, &Verified) + Send + Sync + 'static) => observer = Some(Arc::new(observer));
        /// With a hook that is called before each phase of a compilation with the progress, and
        /// once at the end. A program that is compiled already calls nothing.
        ///
        /// ```
        /// use std::sync::{Arc, Mutex};
        /// use tracecast::prelude::*;
        ///
        /// let phases = Arc::new(Mutex::new(Vec::new()));
        /// let seen = phases.clone();
        /// let options = Options::new().progress(move |now| {
        ///     seen.lock().expect("no other thread").push(format!("{}/{} {}", now.done, now.total, now.phase));
        /// });
        /// let double = jit(options, |t| t.output("y", t.input("x") * 2.0));
        /// double.run(&mut Store::new(), &[("x", &Tensor::scalar(1.0f32))])?;
        /// let phases = phases.lock().expect("no other thread");
        /// assert_eq!((&*phases[0], &*phases[phases.len() - 1]), ("0/9 autocast", "9/9 ready"));
        /// # Ok::<(), tracecast::Error>(())
        /// ```
        progress(hook: impl Fn(&Progress<'_>) + Send + Sync + 'static) => progress = Some(Arc::new(hook));
        /// With the text of the program after each pass in the report.
        keep_history(keep: bool) => keep_history = keep;
    }

    /// With every value of the program stored, so that a test can measure what fusion
    /// rematerialises.
    #[doc(hidden)]
    #[must_use]
    pub fn store_all(mut self, store: bool) -> Self {
        self.store_all = store;
        self
    }

    setters! {
        /// With runs that refuse inputs which the program does not use, or without, as is the
        /// default: then one batch serves a training step that uses labels and an evaluation that
        /// does not.
        ///
        /// ```
        /// use tracecast::prelude::*;
        ///
        /// let (x, y) = (Tensor::new([1], &[2.0f32])?, Tensor::new([1], &[0i64])?);
        /// let double = |strict| jit(Options::new().strict(strict), |t| t.output("z", t.input("x") * 2.0));
        /// let run = |strict| double(strict).run(&mut Store::new(), &[("x", &x), ("y", &y)]);
        /// assert!(run(false).is_ok() && run(true).is_err());
        /// # Ok::<(), tracecast::Error>(())
        /// ```
        strict(strict: bool) => strict = strict;
        /// With this seed for state that a run puts into the store by itself: the generator of
        /// random numbers.
        seed(seed: u64) => seed = seed;
        /// With at most `programs` compiled programs in a [`Jit`](crate::Jit), at least one.
        programs(programs: usize) => programs = programs.max(1);
        /// With at most `bytes` bytes taken by the compiled programs of a [`Jit`](crate::Jit):
        /// their code, their numbers, and what one run of each needs. Those used longest
        /// ago go, but never the one compiled last. Without a limit if not said.
        program_bytes(bytes: usize) => program_bytes = bytes;
        /// With programs refused whose runs need more than `bytes` bytes besides state, inputs and
        /// results that others hold: what is needed is known before a program runs
        /// ([`Executable::peak_bytes`](crate::Executable::peak_bytes), and
        /// [`Executable::scratch_bytes`](crate::Executable::scratch_bytes) on the threads). Without a
        /// limit if not said.
        ///
        /// ```
        /// use tracecast::prelude::*;
        ///
        /// let sum = |limit| jit(Options::new().memory_limit(limit), |t| t.output("y", (t.input("x") + 1.0).sum(())));
        /// let x = Tensor::rand([300, 300], 1)?;
        /// let run = |limit| sum(limit).run(&mut Store::new(), &[("x", &x)]);
        /// assert!(run(1 << 20).is_ok());
        /// let error = run(16).unwrap_err().to_string();
        /// assert!(error.contains("memory_limit") && error.contains("@step"), "{error}");
        /// # Ok::<(), tracecast::Error>(())
        /// ```
        memory_limit(bytes: usize) => memory_limit = bytes;
    }

    /// With kernels compiled on at most `threads` threads of the CPU, so that the others go on
    /// serving; 0, as if not said, for all of them. Passes take one thread in any case, the one
    /// that compiles.
    ///
    /// ```
    /// use tracecast::Options;
    ///
    /// // All cores but one.
    /// let cores = std::thread::available_parallelism().map_or(1, usize::from);
    /// let options = Options::new().compile_threads(cores.saturating_sub(1).max(1));
    /// assert_eq!(options.target()?.name(), "cpu");
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[must_use]
    pub fn compile_threads(mut self, threads: usize) -> Self {
        self.compile_threads = threads;
        self.closed()
    }

    setters! {
        /// With plans and bindings for at most `sizes` sets of sizes kept of each program whose
        /// sizes are names, at least one; 64 if not said.
        sizes(sizes: usize) => sizes = sizes.max(1);
        /// Whether a [`Jit`](crate::Jit) whose second call differs from an earlier one in sizes
        /// alone makes names of those sizes. It does if not said: then the program is traced once
        /// more, and for further sizes of these axes never again.
        infer_sizes(infer: bool) => infers_sizes = infer;
        /// With reductions between ranks put together until they have `bytes` bytes; 1 MiB if not
        /// said. Small ones cost mostly the time to begin, and a large one begins only when the
        /// last of its values is there. All ranks have to say the same.
        bucket_bytes(bytes: usize) => bucket = bytes;
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Options");
        fields.field("device", &self.device).field("threads", &self.threads);
        #[cfg(feature = "cpu")]
        fields.field("vectors", &self.vectors);
        fields
            .field("code_cache", &self.code_cache)
            .field("keep_weights", &self.keep_weights)
            .field("reuse_outputs", &self.reuse_outputs)
            .field("precision", &self.precision)
            .field("fold", &self.fold)
            .field("keep_history", &self.keep_history)
            .field("strict", &self.strict)
            .field("seed", &self.seed)
            .field("programs", &self.programs)
            .field("program_bytes", &self.program_bytes)
            .field("memory_limit", &self.memory_limit)
            .field("compile_threads", &self.compile_threads)
            .field("sizes", &self.sizes)
            .field("infers_sizes", &self.infers_sizes)
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}
