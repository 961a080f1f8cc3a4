//! Inputs of an import: a file of perf, a directory of `perf record --threads`, or a
//! stream from a pipe.
//!
//! Records are read twice, as times begin with the earliest. A pipe cannot be read
//! twice, so its stream is kept in a nameless file on the output's file system until it
//! has been imported. So is the content of a compressed file. Nothing is left of that file when memgauge ends, however it ends.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::compression::unpacked;
use crate::{Error, ErrorKind, Result};

/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 1 << 16;
/// First bytes of perf's files, in either byte order, and of version 1.
const MAGICS: [&[u8; 8]; 4] = [b"PERFILE2", b"2ELIFREP", b"PERFFILE", b"ELIFFREP"];

/// An input that can be read twice.
#[derive(Debug)]
pub struct Input {
    /// The file with the head.
    pub(super) main: BufReader<File>,
    /// Further files, with records only.
    pub(super) further: Vec<(PathBuf, BufReader<File>)>,
    /// A folder with the file system of the machine that was recorded.
    pub symfs: Option<PathBuf>,
    /// When the input was last written to: as it is read, of a pipe.
    pub(super) ended: SystemTime,
}

impl Input {
    /// Opens a file, a directory, a pipe, or standard input for `-`. The stream of a
    /// pipe is kept in `folder`.
    ///
    /// # Errors
    /// There is no such input, or nothing that perf wrote in it.
    pub fn open(path: &Path, folder: &Path) -> Result<Input> {
        let device = match path.to_str() {
            Some("-") => Path::new("/dev/stdin"),
            _ => path,
        };
        let file = opened(device)?;
        let kind = file.metadata().map_err(|e| failed(path, e))?.file_type();
        if kind.is_dir() {
            return Input::directory(path);
        }
        if !kind.is_file() {
            return Ok(Input::of(kept(file, folder)?));
        }
        match directory_of(path) {
            Some(directory) => Input::directory(directory),
            None => {
                let mut input = Input::of(plain(
                    file.try_clone().map_err(|e| failed(path, e))?,
                    folder,
                )?);
                input.ended = last_write(&file);
                Ok(input)
            }
        }
    }

    fn of(file: File) -> Input {
        Input {
            symfs: None,
            ended: last_write(&file),
            main: BufReader::with_capacity(BUFFER_BYTES, file),
            further: Vec::new(),
        }
    }

    fn directory(path: &Path) -> Result<Input> {
        let head = path.join("data");
        if !head.is_file() {
            let why = "it is a directory without a file `data`: name a file that `perf record` \
                       wrote, or a directory of `perf record --threads`";
            return Err(Error::new(ErrorKind::BadInput, why));
        }
        let mut input = Input::of(opened(&head)?);
        for name in numbered(path)? {
            let file = BufReader::with_capacity(BUFFER_BYTES, opened(&name)?);
            input.further.push((name, file));
        }
        Ok(input)
    }

    /// Back to the beginning.
    pub(super) fn rewind(&mut self) -> Result<()> {
        let again = |e| Error::system("failed to read perf data again", e);
        self.main.rewind().map_err(again)?;
        for (_, file) in &mut self.further {
            file.rewind().map_err(again)?;
        }
        Ok(())
    }
}

fn failed(path: &Path, e: io::Error) -> Error {
    Error::system(format!("failed to open `{}`", path.display()), e)
}

fn opened(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| failed(path, e))
}

/// The directory whose `data` the user named: its records lie in the other files.
fn directory_of(path: &Path) -> Option<&Path> {
    let folder = path.parent().filter(|_| path.ends_with("data"))?;
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    folder.join("data.0").is_file().then_some(folder)
}

/// `data.0`, `data.1` and so on, in order.
fn numbered(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| failed(folder, e))?;
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| failed(folder, e))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("data."));
        let number = number.and_then(|digits| digits.parse::<u32>().ok());
        all.extend(number.map(|number| (number, entry.path())));
    }
    all.sort_unstable();
    Ok(all.into_iter().map(|(_, path)| path).collect())
}

fn last_write(file: &File) -> SystemTime {
    let written = file.metadata().and_then(|metadata| metadata.modified());
    written.unwrap_or_else(|_| SystemTime::now())
}

/// Copies a pipe's stream, unpacked, into a file without a name.
fn kept(pipe: File, folder: &Path) -> Result<File> {
    let mut content = unpacked(pipe)?.content;
    let read = |e| Error::system("failed to read from the pipe", e);
    let head = content.fill_buf().map_err(read)?;
    if !MAGICS.iter().any(|magic| head.starts_with(*magic)) {
        let why = "the pipe does not carry perf data: its first bytes are not PERFILE2";
        return Err(Error::new(ErrorKind::BadInput, why));
    }
    nameless(content, folder)
}

/// The file itself, or its unpacked content in a file without a name.
pub(super) fn plain(mut file: File, folder: &Path) -> Result<File> {
    let unpacked = unpacked(&file)?;
    if unpacked.compression.is_some() {
        return nameless(unpacked.content, folder);
    }
    drop(unpacked);
    let rewound = file.rewind();
    rewound.map_err(|e| Error::system("failed to read the input again", e))?;
    Ok(file)
}

fn nameless(mut content: impl Read, folder: &Path) -> Result<File> {
    let keep = |e| {
        let message = format!(
            "failed to keep the input's content in `{}` until it is imported; name another place \
             with -o",
            folder.display()
        );
        Error::system(message, e)
    };
    let mut file = tempfile::tempfile_in(folder).map_err(keep)?;
    io::copy(&mut content, &mut file).map_err(keep)?;
    file.rewind().map_err(keep)?;
    Ok(file)
}
