"""Does a long run grow? Trains a tiny model for many iterations, then has it serve many requests.

    growth.py CORPUS OUT [--iterations 10000] [--requests 10000] [--megatron PROGRAM]

Samples resident memory, open files and CPU time of the process. What the last tenth of the run needs may not exceed
what its sixth tenth needed, when caches are full: memory by 1 %, CPU time by 5 %, files by none. OUT/training.tsv and
OUT/serving.tsv have the samples.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time


class Usage:
    """What a process uses, over its progress."""

    def __init__(self, pid):
        self.folder = pathlib.Path(f"/proc/{pid}")
        self.rows = []  # progress, MiB, files, CPU seconds

    def sample(self, progress):
        try:
            resident = int((self.folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
            fields = (self.folder / "stat").read_text().rpartition(")")[2].split()
            cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            self.rows.append((progress, resident, len(os.listdir(self.folder / "fd")), cpu))
        except OSError:
            pass  # it has ended

    def tenth(self, number):
        """The median MiB and files, and the CPU seconds per unit, of a tenth of the progress, from 0."""
        end = self.rows[-1][0]
        rows = [row for row in self.rows if number * end <= 10 * row[0] <= (number + 1) * end]
        progress = max(1, rows[-1][0] - rows[0][0])
        return statistics.median(row[1] for row in rows), statistics.median_low(row[2] for row in rows), (rows[-1][3] - rows[0][3]) / progress

    def write(self, path):
        rows = [("done", "resident_MiB", "open_files", "cpu_seconds"), *self.rows]
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))

    def report(self, units):
        """Prints both tenths; true if the last one needs more."""
        (memory, files, cpu), (last_memory, last_files, last_cpu) = self.tenth(5), self.tenth(9)
        print(f"{self.rows[-1][0]} {units}, sixth and last tenth: resident MiB {memory:.1f}, {last_memory:.1f}; open files {files}, "
              f"{last_files}; CPU ms each {1000 * cpu:.2f}, {1000 * last_cpu:.2f}")
        return last_memory > 1.01 * memory or last_files > files or last_cpu > 1.05 * cpu


def trained(flags):
    """Trains the model; true if the run grows."""
    metrics = flags.out / "metrics.jsonl"
    command = [flags.megatron, "pretrain-gpt", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
               "--seq-length", "64", "--max-position-embeddings", "64", "--micro-batch-size", "2", "--global-batch-size", "2",
               "--train-iters", flags.iterations, "--lr", "1e-3", "--num-threads", "1", "--device", "cpu",
               "--train-data-path", flags.corpus / "train_text_document", "--valid-data-path", flags.corpus / "held-out_text_document",
               "--eval-interval", flags.iterations // 20, "--eval-iters", "2", "--data-cache-path", flags.out / "cache",
               "--vocab-file", flags.corpus / "tokenizer/vocab.json", "--merge-file", flags.corpus / "tokenizer/merges.txt",
               "--log-interval", "1", "--metrics-jsonl", metrics, "--save", flags.out / "checkpoint",
               "--save-interval", flags.iterations // 10, "--keep-last", "2"]
    with (flags.out / "train.log").open("w") as log:
        process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    usage, done, lines = Usage(process.pid), 0, None
    while process.poll() is None:
        time.sleep(0.5)
        if lines is None and metrics.exists():
            lines = metrics.open(encoding="utf-8")
        if lines is not None:
            done += sum('"lm loss":' in line for line in lines)
        if done:
            usage.sample(done)
    if process.returncode:
        raise SystemExit(f"growth.py: the training ended with {process.returncode}; see {flags.out / 'train.log'}")
    usage.write(flags.out / "training.tsv")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    times = [row["elapsed_ms_per_iteration"] for row in rows if "lm loss" in row]
    tenth = len(times) // 10
    print(f"median ms of an iteration, sixth and last tenth: {statistics.median(times[5 * tenth: 6 * tenth]):.2f}, "
          f"{statistics.median(times[-tenth:]):.2f}")
    return usage.report("iterations")


def served(flags):
    """Has the model serve requests; true if the server grows or an answer is wrong."""
    log = flags.out / "serve.log"
    with log.open("w") as file:
        server = subprocess.Popen([flags.megatron, "serve", "--load", flags.out / "checkpoint", "--port", "0", "--device", "cpu",
                                   "--num-threads", "1", "--max-running-requests", "32"], stdout=file, stderr=file)
    try:
        while not (found := re.search(r"at (http://\S+)", log.read_text())):
            if server.poll() is not None:
                raise SystemExit(f"growth.py: the server ended; see {log}")
            time.sleep(0.1)
        clients = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("clients.py"), found[1],
                                  flags.corpus / "held-out/docs.jsonl", "--clients", "32", "--requests", str(flags.requests),
                                  "--max-tokens", "8", "--pid", str(server.pid), "--samples", flags.out / "serving.tsv"], check=False)
    finally:
        server.terminate()
        server.wait()
    return clients.returncode != 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--iterations", type=int, default=10000)
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--megatron", default="megatron")
    flags = parser.parse_args()
    flags.out.mkdir(parents=True)
    grows = [trained(flags), served(flags)]
    sys.exit(any(grows))


if __name__ == "__main__":
    main()
