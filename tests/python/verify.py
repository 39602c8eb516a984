#!/usr/bin/env python3
"""Checks a Selvedge log with nothing but FORMAT.md: an independent reader, to hold against the real one.

    verify.py TRANSCRIPT --thread ID --key PUBLIC_KEY [--key ...] [--head HEAD.json] [--pure]
    verify.py --batch [--pure]        jobs {"path","thread","keys":[...],"head":{...}|null}, one a line, from stdin

prints one JSON object (in a batch one for each job, {"error": ...} where a job cannot be done):

    unchanged_up_to   the version of the last checkpoint that holds, or null
    versions          how many checkpoints hold
    lines, bytes      how much of the log stands up to and with that checkpoint
    behind            how many bytes follow it
    problem           null, or the line (from 1), its first byte and what does not hold
    verdict           without a head: unchanged, damaged, unsigned, tail
                      with a head: sound, truncated, damaged, foreign, ahead

Exit code 0 for unchanged and sound (a batch: when all jobs could be done), 6 for any other verdict, 2 for wrong usage.

Ed25519 is that of the package `cryptography` where it is installed, else (or with --pure) that of ed25519.py beside this file.
"""
import argparse
import base64
import datetime
import hashlib
import json
import sys

import ed25519

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
except ImportError:
    Ed25519PublicKey = None

FORMAT = 1
MAX_LINE = 8_388_608
MAX_DEPTH = 64
MEMBERS = {"seq", "timestamp", "thread_id", "event_type", "payload"}
DOMAIN = b"selvedge/checkpoint/1\0"
SIG = b',"sig":"'  # then 86 characters, then END
END = b'"}}\n'
HEAD = {"log_id": str, "segment": int, "version": int, "lines": int, "bytes": int, "hash": str, "epoch": int, "signer": str}

PLACES = {}  # event_type -> its place within a changeset
for place, names in enumerate((
        "recovery key_rotated", "thread_created", "run_started", "snapshot", "message", "patch", "state_action",
        "call_opened tool_intent tool_outcome suspended asked decision request_answered account_opened reserved issued settled released account_closed"
        " corrected account_reopened reserved_again account_raised account_stopped usage"
        " manifest_changed thread_handoff thread_resumed child_spawned child_settled context_limit_reached hook_fired"
        " context_injected capability_denied sandboxed graph_started step_started step_completed foreach_completed"
        " graph_completed graph_error graph_cancelled blob_erased", "run_finished", "checkpoint"), 1):
    PLACES.update(dict.fromkeys(names.split(), place))


class Bad(Exception):
    """Something does not hold."""


class Torn(Bad):
    """The last line has no 0x0a."""


def need(holds, what):
    if not holds:
        raise Bad(what)


# ---- the log ---------------------------------------------------------------------------------------------------------------

def check(file, thread, keys, verify):
    """Goes through the lines as FORMAT.md says under "Checking a log". `keys`: fingerprint -> the 32 bytes of a trusted key.

    Returns the heads behind the checkpoints that hold, in order, the payload of line 0 (if it holds), the problem at
    which it stopped, if any, and whether that is but a torn last line."""
    seq = start = 0  # the next line: its number and its first byte
    running = hashlib.sha256()  # of all bytes before it
    first, heads, left = None, [], set()  # `left`: keys that have signed and were followed by another
    epoch, signer, place, rotations, losses = 0, None, 0, [], []
    for raw in iter(lambda: file.readline(MAX_LINE + 1), b""):
        try:
            # 1. readable, the next number, this thread
            line = read_line(raw)
            kind, payload = line["event_type"], line["payload"]
            need(is_int(line["seq"]) and line["seq"] == seq, "seq is not %d" % seq)
            need(line["thread_id"] == thread, "thread_id is not the thread's")
            # 2. line 0
            need((kind == "thread_created") == (seq == 0), "thread_created must be line 0, and only line 0")
            if seq == 0:
                need(is_int(payload.get("format")) and payload["format"] == FORMAT, "format is not one that is known")
                need(is_hex(payload.get("log_id"), 32), "log_id is not 32 hex characters")
                need(is_int(payload.get("segment")) and payload["segment"] == 0, "segment is not 0")
                first = payload
            # 3. the order within the changeset
            need(PLACES[kind] >= place, kind + " stands too late in its changeset")
            place = PLACES[kind]
            if kind == "key_rotated":
                rotations.append((payload.get("from"), payload.get("to")))
            if kind == "recovery" and payload.get("found") == "loss":
                losses.append((payload.get("from_version"), payload.get("to_version")))
            if kind == "checkpoint":
                # 4. the chain
                due = heads[-1]["version"] + 1 if heads else 0
                if losses:  # only a recorded loss of exactly the versions in between lets a version be passed over
                    need(len(losses) == 1, "more than one loss in a changeset")
                    (lost_from, lost_to), = losses
                    need(is_int(lost_from) and is_int(lost_to) and due == lost_from <= lost_to,
                         "the loss does not begin at version %d" % due)
                    due = lost_to + 1
                need(is_int(due), "version is beyond 2^63-1")
                for member, value in (("version", due), ("log_id", first["log_id"]), ("segment", first["segment"]),
                                      ("byte_offset", start), ("hash", running.hexdigest())):
                    found = payload.get(member)
                    need(type(found) is type(value) and found == value, "%s is not %s" % (member, value))
                need(is_int(payload.get("epoch")) and payload["epoch"] >= epoch, "epoch is lower than before, or no number")
                # 5. the signer
                by = payload.get("signer")
                need(isinstance(by, str) and by in keys, "signer is not a trusted key")
                if signer is not None and by != signer:
                    need((signer, by) in rotations, "signer is another one, without key_rotated")
                    need(by not in left, "signer is a key that was left before")
                    left.add(signer)
                # 6. the signature
                signed(raw, keys[by], verify)
                epoch, signer, version, place, rotations, losses = payload["epoch"], by, due, 0, [], []
        except Bad as bad:
            return heads, first, {"line": seq + 1, "byte": start, "what": str(bad)}, isinstance(bad, Torn)
        seq += 1
        start += len(raw)
        running.update(raw)
        if kind == "checkpoint":
            heads.append({"log_id": first["log_id"], "segment": first["segment"], "version": version, "lines": seq, "bytes": start,
                          "hash": running.hexdigest(), "epoch": epoch, "signer": signer})
    return heads, first, None, False


def signed(raw, key, verify):
    """The signature of a checkpoint line stands where it must and holds."""
    cut = len(raw) - len(END) - 86
    need(raw[cut - len(SIG):cut] == SIG and raw[-len(END):] == END, "sig is not where it must be")
    sig = unbase64url(raw[cut:-len(END)], 64)
    need(sig is not None, "sig is not canonical base64url")
    need(verify(key, DOMAIN + raw[:cut - len(SIG)], sig), "signature does not hold")


def judge(path, thread, keys, head, verify):
    """Checks the log at `path` and, with a head, whether it ends where it should."""
    with open(path, "rb") as file:
        heads, first, problem, torn = check(file, thread, keys, verify)
        size = file.seek(0, 2)
        inside = problem is not None and signed_after(file, problem["byte"], thread, keys, first, heads, verify)
    last = heads[-1] if heads else {"version": None, "lines": 0, "bytes": 0}
    behind = size - last["bytes"]
    bad = problem is not None and not torn
    if inside:
        verdict = "damaged"
    elif head is None:
        verdict = "damaged" if bad else "unsigned" if not heads else "tail" if behind else "unchanged"
    elif heads and head["version"] <= last["version"]:
        here = next((one for one in heads if one["version"] == head["version"]), None)
        if here is None:  # a version that was lost: the log says so itself and continues
            verdict = "ahead"
        elif here != head:
            members = ", ".join(member for member in HEAD if here[member] != head[member])
            problem = {"line": here["lines"], "byte": here["bytes"], "what": "the head of this version differs in " + members}
            verdict = "damaged"
        elif size == head["bytes"]:
            verdict = "sound"
        else:
            verdict = "ahead" if last["version"] > head["version"] else "foreign"
    elif first is not None and (first["log_id"], first["segment"]) != (head["log_id"], head["segment"]):
        problem = {"line": 1, "byte": 0, "what": "this is another log than the head's"}
        verdict = "damaged"
    else:  # a torn line is what cutting leaves, but not in a file that is as long as it should be
        verdict = "damaged" if bad or (torn and size >= head["bytes"]) else "truncated"
    return {"unchanged_up_to": last["version"], "versions": len(heads), "lines": last["lines"], "bytes": last["bytes"],
            "behind": behind, "problem": problem, "verdict": verdict}


def signed_after(file, start, thread, keys, first, heads, verify):
    """Whether a checkpoint of this log, later than those that hold, is rightly signed at `start` or after it: what stands there was committed."""
    file.seek(start)
    for raw in file:
        for begin in {0, max(raw.rfind(b'{"seq":'), 0)}:  # a line may have been put before it without an end of its own
            try:
                line = read_line(raw[begin:])
                said = line["payload"]
                ours = line["event_type"] == "checkpoint" and line["thread_id"] == thread and is_int(said.get("version"))
                ours = ours and (first is None or said.get("log_id") == first["log_id"])
                if ours and (not heads or said["version"] > heads[-1]["version"]) and isinstance(said.get("signer"), str) and said["signer"] in keys:
                    signed(raw[begin:], keys[said["signer"]], verify)
                    return True
            except Bad:
                pass
    return False


# ---- lines -----------------------------------------------------------------------------------------------------------------

def read_line(raw):
    """The object on a line (with its 0x0a), which is as FORMAT.md says under "Lines"."""
    whole = raw.endswith(b"\n")
    need(len(raw) + (not whole) <= MAX_LINE, "line is too long")
    if not whole:
        raise Torn("last line has no 0x0a")
    need(raw[:1] == b"{" and raw[-2:-1] == b"}", "line is not one JSON object")
    line = strict_json(raw[:-1])
    need(isinstance(line, dict), "line is not one JSON object")
    need(not MEMBERS - line.keys(), "member is missing")
    need(not line.keys() - MEMBERS, "member is unknown")
    need(isinstance(line["event_type"], str) and line["event_type"] in PLACES, "event_type is unknown")
    need(isinstance(line["payload"], dict), "payload is not an object")
    need(is_time(line["timestamp"]), "timestamp is not a time")
    return line


def strict_json(data):
    """RFC 8259 and no more: json alone takes NaN, duplicate keys and half surrogate pairs, and nests as deep as it can."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=members, parse_int=integer,
                           parse_float=double, parse_constant=constant)
    except UnicodeDecodeError:
        raise Bad("not UTF-8")
    except ValueError:
        raise Bad("not JSON")
    except RecursionError:
        raise Bad("nests too deep")
    level, depth = [value], 0
    while level:
        inner = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item)
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            elif isinstance(item, str):
                need(item.isascii() or not any("\ud800" <= c <= "\udfff" for c in item), "not JSON: half a surrogate pair")
        depth += any(isinstance(item, (dict, list)) for item in level)
        need(depth <= MAX_DEPTH, "nests too deep")
        level = inner
    return value


def members(pairs):
    found = dict(pairs)
    need(len(found) == len(pairs), "duplicate key")
    return found


def integer(text):
    """An int; a float where no member we read could be meant: -0, and what is too long for 64 bits."""
    return double(text) if text == "-0" or len(text) > 20 else int(text)


def double(text):
    need(abs(float(text)) != float("inf"), "a number is beyond the range of a double")
    return float(text)


def constant(name):
    raise Bad("not JSON: " + name)


def is_int(value):
    """One of the numbers that the page names: 0 to 2^63-1, without fraction, exponent or sign."""
    return type(value) is int and 0 <= value < 1 << 63


def is_hex(value, size):
    return isinstance(value, str) and len(value) == size and set(value) <= set("0123456789abcdef")


def is_time(value):
    """YYYY-MM-DDTHH:MM:SS.ffffffZ, and there is such a time, not before 1970."""
    if not isinstance(value, str) or "".join("0" if c in "123456789" else c for c in value) != "0000-00-00T00:00:00.000000Z":
        return False
    try:
        return datetime.datetime.fromisoformat(value[:-1]).year >= 1970
    except ValueError:
        return False


# ---- keys and signatures ---------------------------------------------------------------------------------------------------

def unbase64url(text, size):
    """The bytes, or None if the text is not the one canonical way to write `size` bytes without padding."""
    try:
        data = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except ValueError:
        return None
    return data if len(data) == size and base64.urlsafe_b64encode(data).rstrip(b"=") == text else None


def verify_library(key, message, sig):
    """cryptography's answer; it does not refuse points of small order and all odd encodings, so ask for that first."""
    if not ed25519.strict(key, sig):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(sig, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def trusted(texts):
    keys = {}
    for text in texts:
        key = unbase64url(text.encode("utf-8", "replace"), 32) if isinstance(text, str) else None
        if key is None:
            raise ValueError("a public key is 32 bytes in base64url without padding (43 characters), not %r" % (text,))
        keys[hashlib.sha256(key).hexdigest()] = key
    return keys


def as_head(value):
    if not isinstance(value, dict) or any(type(value.get(member)) is not kind for member, kind in HEAD.items()):
        raise ValueError("a head is an object with " + ", ".join(HEAD))
    if value["version"] < 0:
        raise ValueError("the version of a head is not negative")
    return {member: value[member] for member in HEAD}


# ---- the program -----------------------------------------------------------------------------------------------------------

def batch(verify):
    done = True
    for text in sys.stdin.buffer:
        try:
            job = strict_json(text)
            head = job.get("head")
            result = judge(job["path"], job["thread"], trusted(job["keys"]), None if head is None else as_head(head), verify)
        except (Bad, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            result, done = {"error": "%s: %s" % (type(error).__name__, error)}, False
        print(json.dumps(result), flush=True)
    return 0 if done else 2


def main(arguments):
    parser = argparse.ArgumentParser(description="Checks a Selvedge log.", allow_abbrev=False)
    parser.add_argument("transcript", nargs="?", metavar="TRANSCRIPT")
    parser.add_argument("--thread", metavar="ID")
    parser.add_argument("--key", action="append", default=[], metavar="PUBLIC_KEY")
    parser.add_argument("--head", metavar="HEAD.json")
    parser.add_argument("--pure", action="store_true", help="use ed25519.py even where cryptography is installed")
    parser.add_argument("--batch", action="store_true", help="read jobs from stdin")
    joined, rest = [], iter(arguments)
    for argument in rest:  # a key or an id may begin with "-", which argparse takes for an option unless it stands behind "="
        value = next(rest, None) if argument in ("--key", "--thread") else None
        joined.append(argument if value is None else argument + "=" + value)
    options = parser.parse_args(joined)
    verify = ed25519.verify if options.pure or Ed25519PublicKey is None else verify_library
    if options.batch:
        if options.transcript is not None or options.thread is not None or options.key or options.head is not None:
            parser.error("--batch takes its jobs from stdin")
        return batch(verify)
    if options.transcript is None or options.thread is None or not options.key:
        parser.error("TRANSCRIPT, --thread and --key are needed")
    try:
        head = None
        if options.head is not None:
            with open(options.head, "rb") as file:
                head = as_head(strict_json(file.read()))
        result = judge(options.transcript, options.thread, trusted(options.key), head, verify)
    except (Bad, OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(result))
    return 0 if result["verdict"] in ("unchanged", "sound") else 6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
