// Browsers start no workers for pages of the file system. There the search runs in a hidden frame.
(() => {
  if (location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => this.receive(data);
      this.scope.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      this.ready = this.load(url);
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script");
        script.src = new URL(url, document.baseURI).href;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${script.src}`));
        this.scope.document.body.append(script);
      });
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      this.ready.then(() => {
        const event = new this.scope.MessageEvent("message", { data });
        this.scope.dispatchEvent(event);
      });
    }

    terminate() {
      this.scope.frameElement.remove();
    }
  }

  // The theme's worker looks for this name to find the folder of its own scripts.
  window.IFrameWorker = FrameWorker;
  window.Worker = FrameWorker;
})();
