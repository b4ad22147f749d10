// Opened from disk, a page may start no Worker; the search then runs in a frame instead.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.frame.title = "search";
    document.body.append(this.frame);
    addEventListener("message", (event) => this.pass(event));
    const inner = this.frame.contentDocument;
    inner.open();
    inner.write(`<script>(${prepare})()</script><script src="${url}"></script>`);
    inner.close();
    this.loaded = new Promise((done) => this.frame.addEventListener("load", done));
  }

  pass(event) {
    if (event.source !== this.frame.contentWindow) return;
    const told = new MessageEvent("message", { data: event.data });
    this.dispatchEvent(told);
    if (this.onmessage) this.onmessage(told);
  }

  async postMessage(data) {
    await this.loaded;
    this.frame.contentWindow.receive(data, "*");
  }

  terminate() {
    this.frame.remove();
  }
}

// What a worker's script expects around it; it runs inside the frame.
function prepare() {
  window.receive = window.postMessage.bind(window);
  window.postMessage = (data) => parent.postMessage(data, "*");
  window.importScripts = async (...urls) => {
    for (const url of urls) {
      await new Promise((loaded) => {
        const script = document.createElement("script");
        script.src = url;
        script.onload = loaded;
        document.head.append(script);
      });
    }
  };
}

if (location.protocol === "file:") window.Worker = FrameWorker;
