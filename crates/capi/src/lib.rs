//! The C interface of on-line profiling (`include/memgauge.h`, `man/memgauge.3`).
//!
//! Every function of it catches panics: none crosses into C. `NULL` where an object
//! belongs is an error, not a crash. Numbers and layouts are those of the header;
//! `tests/examples.rs` compares them.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use memgauge_emulate::sampled::{SampledOptions, SampledProgram};
use memgauge_online::{
    Clean, CommandEnd, Error, ErrorKind, Latency, Profiler, Reader, Region, RegionId, Sample,
    Settings, Sharing, Source, State, Statistics, WhenFull,
};

mod layout;

use layout::{CSample, CSettings, CStatistics};

/// A profiler, the path of its file of marks, and the process that made it.
pub struct CProfiler(Profiler, CString, u32);

/// A reader. Calls from several threads wait for each other.
pub struct CReader(Mutex<(Reader, Vec<Sample>)>, u32);

const BAD_ARGUMENT: c_int = -1;
const MISSING: c_int = -2;
const REFUSED: c_int = -3;
const SYSTEM: c_int = -4;
const PANICKED: c_int = -5;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

fn say(message: &str) {
    let text: Vec<u8> = message.bytes().filter(|b| *b != 0).collect();
    MESSAGE.with(|m| *m.borrow_mut() = CString::new(text).unwrap_or_default());
}

fn code(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::Usage | ErrorKind::BadInput => BAD_ARGUMENT,
        ErrorKind::Missing => MISSING,
        ErrorKind::Refused | ErrorKind::NoSuchTask => REFUSED,
        _ => SYSTEM,
    }
}

fn absent(what: &str) -> Error {
    Error::usage(format!("failed to call memgauge: {what} is NULL"))
}

/// Runs what a function does; its error or panic becomes a code and a message.
fn guarded<T: Into<i64>>(call: impl FnOnce() -> Result<T, Error>) -> i64 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value.into(),
        Ok(Err(error)) => {
            say(&error.in_full());
            code(&error).into()
        }
        Err(_) => {
            say("failed inside memgauge: please report it");
            PANICKED.into()
        }
    }
}

fn plain(call: impl FnOnce() -> Result<(), Error>) -> c_int {
    guarded(|| call().map(|()| 0)) as c_int
}

/// # Safety
/// NULL, or an object that this library made and that was not freed.
unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| absent(what))
}

/// What another process made is of no use in a forked child: the threads that work for it
/// stayed behind, and the child has their locks as they were, and the parent's descriptors.
trait Made {
    const WHAT: &str;
    fn maker(&self) -> u32;
}

impl Made for CProfiler {
    const WHAT: &str = "profiler";
    fn maker(&self) -> u32 {
        self.2
    }
}

impl Made for CReader {
    const WHAT: &str = "reader";
    fn maker(&self) -> u32 {
        self.1
    }
}

/// # Safety
/// NULL, or a profiler or reader that was not freed.
unsafe fn own<'a, T: Made>(pointer: *const T) -> Result<&'a T, Error> {
    // SAFETY: as the caller promises.
    let made = unsafe { object(pointer, T::WHAT) }?;
    if made.maker() != std::process::id() {
        return Err(Error::usage(format!(
            "failed to use a {0}: process {1} made it, and this is a child that was forked later: \
             make another",
            T::WHAT,
            made.maker()
        )));
    }
    Ok(made)
}

/// Frees what this process made. A forked child only forgets it.
///
/// # Safety
/// NULL, or a profiler or reader that is used no more.
unsafe fn free<T: Made>(pointer: *mut T) {
    // SAFETY: as the caller promises.
    if unsafe { own(pointer) }.is_ok() {
        // SAFETY: made by `Box::into_raw`, and freed once.
        let made = unsafe { Box::from_raw(pointer) };
        let _ = plain(|| {
            drop(made);
            Ok(())
        });
    }
}

/// # Safety
/// NULL, or room for a value.
unsafe fn put<T>(into: *mut T, value: T, what: &str) -> Result<(), Error> {
    if into.is_null() {
        return Err(absent(what));
    }
    // SAFETY: not NULL, and as the caller promises.
    unsafe { into.write(value) };
    Ok(())
}

/// Why the last call of this thread failed; valid until its next call fails.
#[unsafe(no_mangle)]
pub extern "C" fn memgauge_error() -> *const c_char {
    MESSAGE.with(|m| m.borrow().as_ptr())
}

/// # Safety
/// NULL, or a structure whose `size` says how large it is.
unsafe fn settings(given: *const CSettings, program: bool) -> Result<Settings, Error> {
    // SAFETY: as the caller promises.
    let given = unsafe { object(given, "settings") }?;
    if given.size != size_of::<CSettings>() {
        return Err(Error::usage(format!(
            "failed to take settings of `{}` bytes: this library's have {}: call memgauge_settings_init",
            given.size,
            size_of::<CSettings>()
        )));
    }
    // SAFETY: the header asks for a text that ends with a NUL.
    let source = match (program, unsafe { text_at(given.event) }?) {
        (true, _) => Source::Program,
        (false, None) => Source::Clock,
        (false, Some(event)) => Source::Pmu(event),
    };
    let mut settings = Settings::of(source);
    settings.period = (given.period > 0).then_some(given.period);
    settings.kernel = flag("kernel", given.kernel)?;
    settings.physical = flag("physical", given.physical)?;
    settings.regions = flag("regions", given.regions)?;
    settings.overhead = (given.overhead != 0.0).then_some(given.overhead);
    settings.phases = flag("phases", given.phases)?;
    settings.buffer = usize::try_from(given.buffer).unwrap_or(usize::MAX);
    settings.when_full = match given.when_full {
        0 => WhenFull::OverwriteOldest,
        1 => WhenFull::RefuseNewest,
        other => return Err(unknown("when_full", other)),
    };
    settings.latency = match given.latency_ms {
        10 => Latency::TenMilliseconds,
        1 => Latency::OneMillisecond,
        other => return Err(unknown("latency_ms", other)),
    };
    Ok(settings)
}

fn text(given: &CStr) -> Result<String, Error> {
    let text = given.to_str().map(str::to_owned);
    text.map_err(|_| Error::usage("failed to read an event's name: it is no UTF-8"))
}

/// # Safety
/// NULL, or a text that ends with a NUL.
unsafe fn text_at(given: *const c_char) -> Result<Option<String>, Error> {
    match given.is_null() {
        true => Ok(None),
        // SAFETY: as the caller promises.
        false => text(unsafe { CStr::from_ptr(given) }).map(Some),
    }
}

fn made(profiler: Profiler) -> *mut CProfiler {
    let file = profiler.marks_file().unwrap_or_default();
    let file = CString::new(file.into_os_string().into_encoded_bytes()).unwrap_or_default();
    Box::into_raw(Box::new(CProfiler(profiler, file, std::process::id())))
}

fn unknown(what: &str, value: c_int) -> Error {
    Error::usage(format!("failed to take {what} `{value}`: see memgauge.h"))
}

fn flag(what: &str, given: c_int) -> Result<bool, Error> {
    match given {
        0 | 1 => Ok(given == 1),
        other => Err(unknown(what, other)),
    }
}

fn sharing(given: c_int) -> Result<Sharing, Error> {
    match given {
        0 => Ok(Sharing::Each),
        1 => Ok(Sharing::Queue),
        other => Err(unknown("sharing", other)),
    }
}

/// Fills in the usual settings: source clock.
///
/// # Safety
/// `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_settings_init(into: *mut CSettings) -> c_int {
    // SAFETY: as the caller promises.
    plain(|| unsafe { put(into, CSettings::usual(), "settings") })
}

/// Makes a profiler.
///
/// # Safety
/// `given` is NULL or was filled in; `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_profiler_new(
    given: *const CSettings,
    into: *mut *mut CProfiler,
) -> c_int {
    plain(|| {
        // SAFETY: as the caller promises.
        unsafe { put(into, std::ptr::null_mut(), "profiler") }?;
        // SAFETY: as the caller promises.
        let profiler = Profiler::new(unsafe { settings(given, false) }?)?;
        // SAFETY: not NULL, as above.
        unsafe { put(into, made(profiler), "profiler") }
    })
}

/// Starts a program on the modelled machine and samples it.
///
/// # Safety
/// As of `memgauge_profiler_new`; `argv` is NULL or has texts that end with a NUL, and NULL
/// at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_profiler_run(
    given: *const CSettings,
    argv: *const *const c_char,
    into: *mut *mut CProfiler,
) -> c_int {
    plain(|| {
        // SAFETY: as the caller promises.
        unsafe { put(into, std::ptr::null_mut(), "profiler") }?;
        // SAFETY: as the caller promises.
        let settings = unsafe { settings(given, true) }?;
        // SAFETY: as the caller promises; it is not NULL, or the line above has failed.
        let event = unsafe { text_at((*given).event) }?;
        // SAFETY: as the caller promises.
        let command = unsafe { words(argv) }?;
        let options = SampledOptions::of(&command, event.as_deref().unwrap_or("llc.miss"))?;
        let program = SampledProgram::start(&options)?;
        let profiler = Profiler::of_program(settings, Box::new(program))?;
        // SAFETY: not NULL, as above.
        unsafe { put(into, made(profiler), "profiler") }
    })
}

/// # Safety
/// NULL, or texts that end with a NUL, and NULL at the end.
unsafe fn words(argv: *const *const c_char) -> Result<Vec<String>, Error> {
    // SAFETY: as the caller promises.
    unsafe { object(argv, "argv") }?;
    let mut words = Vec::new();
    loop {
        // SAFETY: no element before this one was NULL, so that there is one here.
        let word = unsafe { *argv.add(words.len()) };
        // SAFETY: as the caller promises.
        match unsafe { text_at(word) }? {
            Some(word) => words.push(word),
            None => return Ok(words),
        }
    }
}

/// The file to which programs are to write their marks.
///
/// # Safety
/// `profiler` is NULL or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_marks_file(profiler: *const CProfiler) -> *const c_char {
    // SAFETY: as the caller promises.
    match unsafe { own(profiler) } {
        Ok(profiler) if !profiler.1.is_empty() => profiler.1.as_ptr(),
        Ok(_) => std::ptr::null(),
        Err(e) => {
            say(&e.in_full());
            std::ptr::null()
        }
    }
}

fn region_of(profiler: &Profiler, region: u32) -> Result<Region, Error> {
    let id = u16::try_from(region).map(RegionId);
    let found = id.ok().and_then(|id| profiler.region(id));
    found.ok_or_else(|| {
        Error::usage(format!(
            "failed to find region `{region}`: no sample had it"
        ))
    })
}

/// The name of a region.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` has `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_region_name(
    profiler: *const CProfiler,
    region: u32,
    into: *mut c_char,
    room: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: as the caller promises.
        let profiler = &unsafe { own(profiler) }?.0;
        let name = region_of(profiler, region)?.name;
        // SAFETY: as the caller promises.
        unsafe { write_text(&name, into, room) }
    })
}

/// Writes as much of a text as there is room for, and a NUL. Returns the bytes of all of it.
///
/// # Safety
/// `into` is NULL or has `room` bytes.
unsafe fn write_text(text: &str, into: *mut c_char, room: usize) -> Result<i64, Error> {
    if into.is_null() && room > 0 {
        return Err(absent("room for a text"));
    }
    let written = text.bytes().take(room.saturating_sub(1)).chain([0]);
    for (at, byte) in written.take(room).enumerate() {
        // SAFETY: `at` is below `room`, so `into` is not NULL.
        unsafe { into.add(at).write(byte as c_char) };
    }
    Ok(text.len() as i64)
}

/// What had to be changed or given up of the settings, and what went wrong.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_notes(
    profiler: *const CProfiler,
    into: *mut c_char,
    room: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: as the caller promises.
        let notes = unsafe { own(profiler) }?.0.notes();
        // SAFETY: as the caller promises.
        unsafe { write_text(&notes.join("\n"), into, room) }
    })
}

/// Frees a profiler. Readers of it may read on what was sampled.
///
/// # Safety
/// NULL, or a profiler that is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_profiler_free(profiler: *mut CProfiler) {
    // SAFETY: as the caller promises.
    unsafe { free(profiler) };
}

/// Functions of a profiler with a number, and what they do.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) => $call:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `profiler` is NULL or a profiler that was not freed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(profiler: *const CProfiler, $($arg: $kind),*) -> i64 {
            guarded(|| {
                // SAFETY: as the caller promises.
                let profiler = &unsafe { own(profiler) }?.0;
                let call: fn(&Profiler, $($kind),*) -> Result<i64, Error> = $call;
                call(profiler, $($arg),*)
            })
        }
    )*};
}

operations! {
    /// Switches all sampling on.
    memgauge_on() => |p| { p.on(); Ok(0) };
    /// Switches all sampling off.
    memgauge_off() => |p| { p.off(); Ok(0) };
    /// Adds a thread.
    memgauge_add_thread(tid: u32) => |p, tid| p.add_thread(tid).map(|()| 0);
    /// Adds a process; the number of threads added.
    memgauge_add_process(pid: u32) => |p, pid| p.add_process(pid).map(|n| n as i64);
    /// Deletes a thread.
    memgauge_delete_thread(tid: u32) => |p, tid| p.delete_thread(tid).map(|()| 0);
    /// Deletes a process; the number of threads deleted.
    memgauge_delete_process(pid: u32) => |p, pid| p.delete_process(pid).map(|n| n as i64);
    /// Lets a thread's sampling go on.
    memgauge_start(tid: u32) => |p, tid| p.start(tid).map(|()| 0);
    /// Stops a thread's sampling.
    memgauge_stop(tid: u32) => |p, tid| p.stop(tid).map(|()| 0);
    /// Changes a thread's period; what it became.
    memgauge_set_period(tid: u32, period: u64) =>
        |p, tid, period| p.set_period(tid, period).map(|n| n as i64);
    /// Changes the period of threads added later; what it became.
    memgauge_set_period_of_new(period: u64) =>
        |p, period| p.set_period_of_new(period).map(|n| n as i64);
    /// Changes the buffer of threads added later.
    memgauge_set_buffer_of_new(samples: u64) => |p, samples| {
        p.set_buffer_of_new(usize::try_from(samples).unwrap_or(usize::MAX)).map(|()| 0)
    };
    /// Waits for the program that was run; its exit code, or 128 and its signal.
    memgauge_wait() => |p| p.wait().map(|end| match end {
        CommandEnd::Exited(code) => code.into(),
        CommandEnd::Signalled(signal) => 128 + i64::from(signal),
        CommandEnd::Interrupted => 130,
    });
    /// Whether it has ended.
    memgauge_ended() => |p| p.ended().transpose().map(|end| end.is_some().into());
    /// The region around a region; 0 for none.
    memgauge_region_outer(region: u32) =>
        |p, region| Ok(region_of(p, region)?.outer.map_or(0, |outer| outer.0.into()));
    /// Threads that were to be followed and were not sampled.
    memgauge_missed() => |p| Ok(p.missed() as i64);
    /// Forgets threads that have ended and whose samples were read, with `all` also
    /// those with samples; the number of threads.
    memgauge_clean(all: c_int) => |p, all| {
        let which = if all != 0 { Clean::All } else { Clean::Read };
        Ok(p.clean(which).len() as i64)
    };
}

/// Counts of a thread.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_get_statistics(
    profiler: *const CProfiler,
    tid: u32,
    into: *mut CStatistics,
) -> c_int {
    plain(|| {
        // SAFETY: as the caller promises.
        let counts = unsafe { own(profiler) }?.0.statistics(tid)?;
        // SAFETY: as the caller promises.
        unsafe { put(into, CStatistics::of(&counts), "statistics") }
    })
}

/// Counts of at most so many threads, in the order in which they were added; how many
/// threads there are.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has room for `most` structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_get_all_statistics(
    profiler: *const CProfiler,
    into: *mut CStatistics,
    most: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: as the caller promises.
        let all = unsafe { own(profiler) }?.0.all_statistics();
        if into.is_null() && most > 0 {
            return Err(absent("statistics"));
        }
        for (at, counts) in all.iter().take(most).enumerate() {
            // SAFETY: `at` is below `most`, so `into` is not NULL.
            unsafe { into.add(at).write(CStatistics::of(counts)) };
        }
        Ok(all.len() as i64)
    })
}

/// Opens a reader of a thread, or of all for 0.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_new(
    profiler: *const CProfiler,
    tid: u32,
    how: c_int,
    into: *mut *mut CReader,
) -> c_int {
    plain(|| {
        // SAFETY: as the caller promises.
        unsafe { put(into, std::ptr::null_mut(), "reader") }?;
        // SAFETY: as the caller promises.
        let profiler = &unsafe { own(profiler) }?.0;
        let reader = match tid {
            0 => profiler.reader(sharing(how)?)?,
            tid => profiler.reader_of(tid, sharing(how)?)?,
        };
        let made = Box::into_raw(Box::new(CReader(
            Mutex::new((reader, Vec::new())),
            std::process::id(),
        )));
        // SAFETY: not NULL, as above.
        unsafe { put(into, made, "reader") }
    })
}

/// Frees a reader.
///
/// # Safety
/// NULL, or a reader that is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_free(reader: *mut CReader) {
    // SAFETY: as the caller promises.
    unsafe { free(reader) };
}

/// A descriptor that is readable while samples may wait. It is the reader's.
///
/// # Safety
/// `reader` is NULL or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_fd(reader: *const CReader) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let reader = unsafe { own(reader) }?;
        let inner = reader.0.lock().unwrap_or_else(|e| e.into_inner());
        Ok(inner.0.as_fd().as_raw_fd())
    }) as c_int
}

/// Waits at most so long; 1: samples may be there, 0: the time has passed.
///
/// # Safety
/// `reader` is NULL or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_wait(reader: *const CReader, longest_ms: u32) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let reader = unsafe { own(reader) }?;
        let inner = reader.0.lock().unwrap_or_else(|e| e.into_inner());
        let longest = Duration::from_millis(longest_ms.into());
        Ok(i32::from(inner.0.wait(longest)))
    }) as c_int
}

/// Reads at most so many samples; how many came.
///
/// # Safety
/// `reader` is NULL or was not freed; `into` has room for `most` samples.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_read(
    reader: *const CReader,
    into: *mut CSample,
    most: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: as the caller promises.
        let reader = unsafe { own(reader) }?;
        if into.is_null() {
            return Err(absent("samples"));
        }
        let mut inner = reader.0.lock().unwrap_or_else(|e| e.into_inner());
        let (reader, samples) = &mut *inner;
        samples.clear();
        reader.read(samples, most);
        for (at, sample) in samples.iter().enumerate() {
            // SAFETY: `at` is below `most`, for which there is room.
            unsafe { into.add(at).write(CSample::of(sample)) };
        }
        Ok(samples.len() as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings that C code with these fields asks for.
    fn asked(overhead: f64, phases: c_int) -> Settings {
        let mut given = CSettings::usual();
        (given.overhead, given.phases) = (overhead, phases);
        // SAFETY: it is filled in, and its event is NULL.
        unsafe { settings(&raw const given, false) }.expect("they can be read")
    }

    #[test]
    fn overheads_and_phases_of_c_are_those_of_rust() {
        let usual = asked(0.0, 0);
        assert_eq!(usual, Settings::of(Source::Clock));
        let spent = asked(0.02, 1);
        assert_eq!((spent.overhead, spent.phases), (Some(0.02), true));
        for (overhead, phases, says) in
            [(0.0, 1, "an overhead"), (2.0, 0, "`2`"), (-1.0, 0, "`-1`")]
        {
            let error = Profiler::new(asked(overhead, phases))
                .err()
                .expect("refused");
            assert_eq!(code(&error), BAD_ARGUMENT);
            assert!(error.to_string().contains(says), "{error}");
        }
        let error = Profiler::new(asked(f64::NAN, 0)).err().expect("refused");
        assert_eq!(code(&error), BAD_ARGUMENT, "{error}");
    }

    #[test]
    fn a_flag_is_0_or_1() {
        let mut given = CSettings::usual();
        given.kernel = 7;
        // SAFETY: it is filled in, and its event is NULL.
        let error = unsafe { settings(&raw const given, false) }.expect_err("refused");
        assert_eq!(code(&error), BAD_ARGUMENT);
        assert!(error.to_string().contains("kernel `7`"), "{error}");
    }

    #[test]
    fn a_text_is_cut_to_its_room_and_counted_in_full() {
        for (room, written) in [
            (0, &b"????"[..]),
            (1, b"\0???"),
            (3, b"ab\0?"),
            (4, b"abc\0"),
        ] {
            let mut into = *b"????";
            // SAFETY: there are four bytes of room, or more.
            let all = unsafe { write_text("abc", into.as_mut_ptr().cast(), room) };
            assert_eq!(all.expect("there is room"), 3);
            assert_eq!(into, *written, "{room}");
        }
        // SAFETY: NULL has no room.
        assert!(unsafe { write_text("abc", std::ptr::null_mut(), 0) }.is_ok());
        // SAFETY: as before.
        assert!(unsafe { write_text("abc", std::ptr::null_mut(), 1) }.is_err());
    }
}
