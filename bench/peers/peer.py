#!/usr/bin/env python3
"""A peer of the bench: does with another library what the bench does with a store.

    peer.py KIND PLACE          KIND: sqlite (LangGraph's SqliteSaver), postgres (PostgresSaver), session (the Agents SDK's SQLiteSession)
                                PLACE: a database file, or a connection string

Commands are read as JSON, one a line: {"do": NAME, ...}. Each is answered by one line of JSON. Every peer is used as its
documentation shows it, with its own defaults; nothing is done on its clock but its own call.
"""
import asyncio
import json
import random
import sys
import threading
import time

BEGAN = time.perf_counter()
TEXT_BYTES = 1024
ROLES = ("user", "assistant", "tool")
WORDS = ("thread", "the", "edge", "keeps", "what", "was", "said", "and", "then", "loom", "a", "weaver", "of", "committed",
         '"quoted"', "lines")
chance = random.Random(7)


def text():
    """About a kibibyte of words."""
    words = []
    length = 0
    while length < TEXT_BYTES:
        word = chance.choice(WORDS)
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:TEXT_BYTES]


class Saver:
    """A LangGraph saver: each commit hands it the whole state, one message longer."""

    def __init__(self, kind, place):
        from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
        from langgraph.checkpoint.base import empty_checkpoint
        self.empty = empty_checkpoint
        self.make = (lambda body: HumanMessage(content=body), lambda body: AIMessage(content=body),
                     lambda body: ToolMessage(content=body, tool_call_id="call-1"))
        if kind == "sqlite":
            import sqlite3

            from langgraph.checkpoint.sqlite import SqliteSaver
            self.connection = sqlite3.connect(place, check_same_thread=False)
            self.saver = SqliteSaver(self.connection)
        else:
            from langgraph.checkpoint.postgres import PostgresSaver
            from psycopg.rows import dict_row
            from psycopg_pool import ConnectionPool
            options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
            self.connection = ConnectionPool(place, min_size=1, max_size=16, kwargs=options, open=True)
            self.saver = PostgresSaver(self.connection)
        self.saver.setup()

    def thread(self, name):
        return SaverThread(self, name)

    def message(self, index):
        return self.make[index % 3](text())

    def close(self):
        self.connection.close()


class SaverThread:
    def __init__(self, peer, name):
        self.peer = peer
        self.saver = peer.saver
        self.config = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self.messages = []
        self.version = None

    def add(self, messages):
        """Puts a checkpoint with these messages behind the others; durable on return. Gives how long that took."""
        self.messages = self.messages + messages
        self.version = self.saver.get_next_version(self.version, None)
        checkpoint = self.peer.empty()
        checkpoint["channel_values"] = {"messages": self.messages}
        checkpoint["channel_versions"] = {"messages": self.version}
        metadata = {"source": "loop", "step": len(self.messages), "parents": {}}
        start = time.perf_counter()
        self.config = self.saver.put(self.config, checkpoint, metadata, {"messages": self.version})
        return time.perf_counter() - start

    def load(self):
        """Gets the newest checkpoint; how many messages, and how long it took."""
        self.config["configurable"].pop("checkpoint_id", None)
        start = time.perf_counter()
        found = self.saver.get_tuple(self.config)
        took = time.perf_counter() - start
        if found is not None:
            self.config = {"configurable": dict(found.config["configurable"])}
            self.messages = found.checkpoint["channel_values"]["messages"]
            self.version = found.checkpoint["channel_versions"]["messages"]
        return len(self.messages), took


class Session:
    """The Agents SDK's session: each commit hands it one item."""

    def __init__(self, _, place):
        from agents import SQLiteSession
        self.make = SQLiteSession
        self.place = place
        self.open = []

    def thread(self, name):
        found = SessionThread(self.make(name, self.place))
        self.open.append(found.session)
        return found

    def message(self, index):
        return {"role": ROLES[index % 3], "content": text()}

    def close(self):
        for session in self.open:
            session.close()


class SessionThread:
    def __init__(self, session):
        self.session = session
        self.loop = asyncio.new_event_loop()
        self.messages = []

    async def add_here(self, messages):
        start = time.perf_counter()
        await self.session.add_items(messages)
        return time.perf_counter() - start

    def add(self, messages):
        self.messages.extend(messages)
        return self.loop.run_until_complete(self.add_here(messages))

    def load(self):
        async def get():
            start = time.perf_counter()
            found = await self.session.get_items()
            return len(found), time.perf_counter() - start
        return self.loop.run_until_complete(get())


def micros(seconds):
    return [round(each * 1e6, 1) for each in seconds]


class Player:
    """Plays the commands."""

    def __init__(self, kind, place):
        self.kind = kind
        self.peer = (Session if kind == "session" else Saver)(kind, place)
        self.threads = {}
        self.count = 0

    def thread(self, name):
        if name not in self.threads:
            self.threads[name] = self.peer.thread(name)
        return self.threads[name]

    def message(self):
        self.count += 1
        return self.peer.message(self.count - 1)

    def fill(self, thread, messages):
        """A thread of this many messages, in as few calls as there can be."""
        self.thread(thread).add([self.message() for _ in range(messages)])
        return {}

    def commits(self, thread, count, seconds=1e9):
        """This many commits of one message each, or as many as are done in this time."""
        thread = self.thread(thread)
        until = time.perf_counter() + seconds
        each = []
        while len(each) < count and time.perf_counter() < until:
            message = self.message()
            each.append(thread.add([message]))
        return {"each_us": micros(each)}

    def load(self, thread):
        messages, took = self.thread(thread).load()
        return {"messages": messages, "load_ms": took * 1e3}

    def crowd(self, threads, commits):
        """So many at once, each with a thread of its own and so many commits; how many there were in a second."""
        names = [f"crowd-{self.count}-{index}" for index in range(threads)]
        everyone = [self.thread(name) for name in names]
        messages = [self.message() for _ in everyone]
        if self.kind == "session":
            return {"per_second": threads * commits / asyncio.run(self.tasks(everyone, messages, commits))}
        gate = threading.Barrier(threads + 1)

        def work(thread, message):
            gate.wait()
            for _ in range(commits):
                thread.add([message])
        running = [threading.Thread(target=work, args=pair) for pair in zip(everyone, messages)]
        for worker in running:
            worker.start()
        gate.wait()
        start = time.perf_counter()
        for worker in running:
            worker.join()
        return {"per_second": threads * commits / (time.perf_counter() - start)}

    async def tasks(self, everyone, messages, commits):
        """The same as tasks of one event loop, as this SDK is meant to be used; how long it took."""
        async def work(thread, message):
            for _ in range(commits):
                await thread.add_here([message])
        start = time.perf_counter()
        await asyncio.gather(*(work(*pair) for pair in zip(everyone, messages)))
        return time.perf_counter() - start

    def race(self, thread, count):
        """Reads the newest state, adds one message, writes; this often. Others do the same meanwhile."""
        errors = 0
        for _ in range(count):
            try:
                held = self.thread(thread)
                if self.kind != "session":
                    held.load()
                held.add([self.message()])
            except Exception:  # An error is an answer: nothing is lost silently then.
                errors += 1
        return {"errors": errors}

    def memory(self):
        with open("/proc/self/status", encoding="ascii") as status:
            fields = dict(line.split(":", 1) for line in status)
        return {"peak_kib": int(fields["VmHWM"].split()[0])}

    def size(self):
        """How many bytes PostgreSQL says the database has."""
        with self.peer.connection.connection() as connection:
            row = connection.execute("select pg_database_size(current_database()) as bytes").fetchone()
        return {"bytes": row["bytes"]}


def main():
    player = Player(sys.argv[1], sys.argv[2])
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(player, command.pop("do"))(**command)
        answer["ready_ms"] = (time.perf_counter() - BEGAN) * 1e3
        print(json.dumps(answer), flush=True)
    player.peer.close()


if __name__ == "__main__":
    main()
